"""Test the sample Android app: its sources against stubs of Android's classes, its frame handling, its resources."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import REPOSITORY
from tests.runtime.test_apps import NEEDS_JAVA, RUNTIME
from tests.runtime.test_apps import tiny as _tiny
from tvmflow.codegen.network.link import link_jni
from tvmflow.codegen.network.opened_network import OpenedNetwork
from tvmflow.support.version import __version__
from tvmflow.toolchain.compilers import Command
from tvmflow.toolchain.triples import ANDROID_LEVEL

tiny = _tiny
APP = REPOSITORY / "examples" / "apps" / "android"
MAIN = APP / "app" / "src" / "main"
# What the app uses of Android, AndroidX and Guava: their signatures, as their documentation has them.
STUBS = {
    "android.Manifest": """
public final class Manifest {
  public static final class permission { public static final String CAMERA = ""; }
}""",
    "android.content.Context": """
public abstract class Context {
  public java.io.File getCodeCacheDir() { return null; }
  public int checkSelfPermission(String p) { return 0; }
}""",
    "android.content.pm.PackageManager": """
public abstract class PackageManager { public static final int PERMISSION_GRANTED = 0; }""",
    "android.os.Bundle": "public final class Bundle { }",
    "android.view.Gravity": "public class Gravity { public static final int BOTTOM = 80; }",
    "android.view.View": "public class View { public View(android.content.Context c) { } }",
    "android.view.ViewGroup": """
public abstract class ViewGroup extends View {
  public ViewGroup(android.content.Context c) { super(c); }
  public void addView(View v) { }
  public void addView(View v, LayoutParams p) { }
  public static class LayoutParams { public LayoutParams(int w, int h) { } }
}""",
    "android.widget.FrameLayout": """
public class FrameLayout extends android.view.ViewGroup {
  public FrameLayout(android.content.Context c) { super(c); }
  public static class LayoutParams extends android.view.ViewGroup.LayoutParams {
    public LayoutParams(int w, int h, int g) { super(w, h); }
  }
}""",
    "android.widget.TextView": """
public class TextView extends android.view.View {
  public TextView(android.content.Context c) { super(c); }
  public CharSequence getText() { return null; }
  public final void setText(CharSequence t) { }
}""",
    "android.app.Activity": """
public class Activity extends android.content.Context {
  protected void onCreate(android.os.Bundle b) { }
  protected void onDestroy() { }
  public void setContentView(android.view.View v) { }
  public final void runOnUiThread(Runnable r) { }
}""",
    "androidx.lifecycle.LifecycleOwner": "public interface LifecycleOwner { }",
    "androidx.activity.result.ActivityResultLauncher": """
public abstract class ActivityResultLauncher<I> { public void launch(I input) { } }""",
    "androidx.activity.result.ActivityResultCallback": """
public interface ActivityResultCallback<O> { void onActivityResult(O result); }""",
    "androidx.activity.result.contract.ActivityResultContract": """
public abstract class ActivityResultContract<I, O> { }""",
    "androidx.activity.result.contract.ActivityResultContracts": """
public final class ActivityResultContracts {
  public static final class RequestPermission extends ActivityResultContract<String, Boolean> { }
}""",
    "androidx.activity.ComponentActivity": """
public class ComponentActivity extends android.app.Activity implements androidx.lifecycle.LifecycleOwner {
  public final <I, O> androidx.activity.result.ActivityResultLauncher<I> registerForActivityResult(
      androidx.activity.result.contract.ActivityResultContract<I, O> c,
      androidx.activity.result.ActivityResultCallback<O> b) { return null; }
}""",
    "androidx.camera.core.UseCase": "public abstract class UseCase { }",
    "androidx.camera.core.CameraSelector": """
public final class CameraSelector { public static final CameraSelector DEFAULT_BACK_CAMERA = null; }""",
    "androidx.camera.core.ImageProxy": """
public interface ImageProxy extends AutoCloseable {
  @Override void close();
  PlaneProxy[] getPlanes();
  int getWidth();
  int getHeight();
  interface PlaneProxy {
    int getRowStride();
    java.nio.ByteBuffer getBuffer();
  }
}""",
    "androidx.camera.core.ImageAnalysis": """
public final class ImageAnalysis extends UseCase {
  public static final int STRATEGY_KEEP_ONLY_LATEST = 0;
  public static final int OUTPUT_IMAGE_FORMAT_RGBA_8888 = 2;
  public interface Analyzer { void analyze(ImageProxy p); }
  public void setAnalyzer(java.util.concurrent.Executor e, Analyzer a) { }
  public static final class Builder {
    public Builder setBackpressureStrategy(int s) { return this; }
    public Builder setOutputImageFormat(int f) { return this; }
    public Builder setOutputImageRotationEnabled(boolean b) { return this; }
    public ImageAnalysis build() { return null; }
  }
}""",
    "androidx.camera.core.Preview": """
public final class Preview extends UseCase {
  public interface SurfaceProvider { }
  public void setSurfaceProvider(SurfaceProvider p) { }
  public static final class Builder { public Preview build() { return null; } }
}""",
    "androidx.camera.core.Camera": "public interface Camera { }",
    "androidx.camera.lifecycle.ProcessCameraProvider": """
public final class ProcessCameraProvider {
  public static com.google.common.util.concurrent.ListenableFuture<ProcessCameraProvider> getInstance(
      android.content.Context c) { return null; }
  public androidx.camera.core.Camera bindToLifecycle(androidx.lifecycle.LifecycleOwner o,
      androidx.camera.core.CameraSelector s, androidx.camera.core.UseCase... u) { return null; }
}""",
    "androidx.camera.view.PreviewView": """
public final class PreviewView extends android.widget.FrameLayout {
  public PreviewView(android.content.Context c) { super(c); }
  public androidx.camera.core.Preview.SurfaceProvider getSurfaceProvider() { return null; }
}""",
    "com.google.common.util.concurrent.ListenableFuture": """
public interface ListenableFuture<V> extends java.util.concurrent.Future<V> {
  void addListener(Runnable r, java.util.concurrent.Executor e);
}""",
    "com.example.mobilenet.Models": """
public final class Models { public static final tvmflow.Model MOBILENET = null; }""",
}
_FRAMES = """
package example.camera;

public final class Frames {
  public static void main(String[] words) throws Exception {
    byte[] bytes = java.nio.file.Files.readAllBytes(java.nio.file.Paths.get(words[1]));
    java.nio.ByteBuffer frame = java.nio.ByteBuffer.allocateDirect(bytes.length);
    frame.put(bytes).rewind();
    try (FrameClassifier classifier = new FrameClassifier(new tvmflow.Network(words[0]))) {
      for (int i = 0; i < 3; ++i) System.out.print(classifier.describe(frame, 7, 9, 40));
    }
    System.out.println(frame.position());
  }
}
"""


def _java(*command: str, folder: Path) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=300,
        check=False,
        env={**os.environ, "LC_ALL": "C.UTF-8"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the compiled app, whose warnings are errors."""
    folder = tmp_path_factory.mktemp("android")
    for name, source in STUBS.items():
        package, _, _ = name.rpartition(".")
        path = folder / "stubs" / f"{name.replace('.', '/')}.java"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"package {package};\n{source}\n")
    (folder / "Frames.java").write_text(_FRAMES)
    sources = [*(folder / "stubs").rglob("*.java"), *(MAIN / "java").rglob("*.java"), folder / "Frames.java"]
    _java(
        "javac",
        "-Xlint:all,-options",
        "-Werror",
        "--release",
        "8",
        "-encoding",
        "UTF-8",
        "-d",
        "classes",
        *map(str, sources),
        *map(str, (RUNTIME / "java" / "tvmflow").glob("*.java")),
        folder=folder,
    )
    return folder


@NEEDS_JAVA
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("kotlinc") is None, reason="needs apt-get install kotlin libkotlinx-coroutines-java")
def test_the_sources_in_kotlin_compile(classes: Path) -> None:
    library = "/usr/share/java/kotlinx-coroutines-core.jar"
    sources = [*(MAIN / "kotlin").rglob("*.kt"), RUNTIME / "kotlin" / "tvmflow" / "Coroutines.kt"]
    words = ["-jvm-target", "1.8", "-Werror", "-no-reflect", "-cp", f"classes:{library}", "-d", "kotlin"]
    _java("kotlinc", *words, *map(str, sources), folder=classes)
    assert (classes / "kotlin" / "example" / "camera" / "MainActivity.class").is_file()


def _text(name: str) -> str:
    return (APP / name).read_text()


def test_the_project_is_complete() -> None:
    """What Gradle and Android's plugin would refuse, as far as files say it."""
    plugins = dict(re.findall(r'id\("([\w.]+)"\) version "(\d+\.\d+)', _text("build.gradle.kts")))
    app = _text("app/build.gradle.kts")
    assert set(re.findall(r'id\("([\w.]+)"\)', app)) == set(plugins), "each plugin has a version"
    [gradle] = re.findall(r"gradle-(\d+\.\d+)-bin\.zip", _text("gradle/wrapper/gradle-wrapper.properties"))
    assert (plugins["com.android.application"], gradle) == ("8.7", "8.9"), "the pair of the plugin's release notes"
    assert "android.useAndroidX=true" in _text("gradle.properties").splitlines()
    assert re.findall(r'include\("(.*)"\)', _text("settings.gradle.kts")) == [":app"]
    values = dict(re.findall(r"(minSdk|compileSdk|targetSdk) = (\d+)", app))
    assert int(values["minSdk"]) >= ANDROID_LEVEL and int(values["compileSdk"]) <= 35, "the newest that 8.7 knows"
    [name] = re.findall(r'namespace = "(.*)"', app)
    packages = {re.findall(r"^package ([\w.]+)", path.read_text())[0] for path in MAIN.rglob("*.[kj]*")}
    assert packages == {name}
    needed = dict(re.findall(r'implementation\("([\w.-]+:[\w.-]+):([\w.]+)"\)', app))
    assert needed["tvmflow:tvmflow-runtime-ktx"] == __version__, "the version that tvmflow bundle --kotlin writes"
    [model] = [one for one in needed if one.startswith("com.example:")]
    assert f"import {model.replace(':', '.')}.Models" in (MAIN / "kotlin/example/camera/MainActivity.kt").read_text()


@NEEDS_JAVA
def test_frames_become_labels(classes: Path, tiny: Path) -> None:
    home = Path(shutil.which("javac") or "").resolve().parent.parent
    include = [f"-I{home / 'include'}", f"-I{home / 'include' / 'linux'}"]
    link_jni(classes / "libtvmflow_jni.so", Command(("gcc", *include)))
    pixels = (np.arange(9 * 7 * 4).reshape(9, 7, 4) * 11 % 256 // 8).astype(np.uint8)
    rows = np.zeros((9, 40), np.uint8)  # more than a row of 28 bytes, as cameras have it
    rows[:, :28] = pixels.reshape(9, 28)
    (classes / "frame.rgba").write_bytes(rows.tobytes())
    said = _java(
        "java",
        "-Xcheck:jni",
        "-Djava.library.path=.",
        "-cp",
        "classes",
        "example.camera.Frames",
        str(tiny),
        "frame.rgba",
        folder=classes,
    ).splitlines()
    guesses = OpenedNetwork(tiny, 2).network.classify(pixels)
    expected = [f"{100 * guess.probability:5.1f}%  {guess.label or guess.number}" for guess in guesses]
    assert re.fullmatch(r"\d+\.\d ms", said[0]) and said[1:6] == expected and said[7:12] == expected
    assert said[-1] == "0", "the camera's buffer is as it was"


def test_resources_and_manifest_fit_the_sources() -> None:
    space = "{http://schemas.android.com/apk/res/android}"
    manifest = ET.parse(MAIN / "AndroidManifest.xml").getroot()  # noqa: S314 (our own file)
    [activity] = manifest.iter("activity")
    source = MAIN / "kotlin" / Path(*activity.attrib[f"{space}name"].split(".")).with_suffix(".kt")
    assert source.is_file() and activity.attrib[f"{space}exported"] == "true"
    assert [one.attrib[f"{space}name"] for one in manifest.iter("uses-permission")] == ["android.permission.CAMERA"]
    names = {one.attrib["name"] for one in ET.parse(MAIN / "res" / "values" / "strings.xml").getroot()}  # noqa: S314
    used = {match for path in MAIN.rglob("*.[kj]*") for match in re.findall(r"R\.string\.(\w+)", path.read_text())}
    used |= set(re.findall(r"@string/(\w+)", (MAIN / "AndroidManifest.xml").read_text()))
    assert used == names
