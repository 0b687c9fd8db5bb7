package example.camera;

import android.Manifest;
import android.content.pm.PackageManager;
import android.os.Bundle;
import android.view.Gravity;
import android.widget.FrameLayout;
import android.widget.TextView;
import androidx.activity.ComponentActivity;
import androidx.activity.result.contract.ActivityResultContracts;
import androidx.camera.core.CameraSelector;
import androidx.camera.core.ImageAnalysis;
import androidx.camera.core.ImageProxy;
import androidx.camera.core.Preview;
import androidx.camera.lifecycle.ProcessCameraProvider;
import androidx.camera.view.PreviewView;
import com.google.common.util.concurrent.ListenableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

/** Shows the camera image with the network's classes on top. Frames that arrive while one is processed are dropped. */
public final class MainActivity extends ComponentActivity {
  private final ExecutorService worker = Executors.newSingleThreadExecutor();
  private PreviewView view;
  private TextView text;
  private FrameClassifier classifier; // of the worker alone

  @Override
  protected void onCreate(Bundle state) {
    super.onCreate(state);
    view = new PreviewView(this);
    text = new TextView(this);
    FrameLayout layout = new FrameLayout(this);
    layout.addView(view);
    layout.addView(text, new FrameLayout.LayoutParams(-1, -2, Gravity.BOTTOM));
    setContentView(layout);
    if (checkSelfPermission(Manifest.permission.CAMERA) == PackageManager.PERMISSION_GRANTED) {
      start();
      return;
    }
    registerForActivityResult(
            new ActivityResultContracts.RequestPermission(),
            granted -> {
              if (granted) start();
              else show("no camera without your permission");
            })
        .launch(Manifest.permission.CAMERA);
  }

  private void start() {
    ListenableFuture<ProcessCameraProvider> future = ProcessCameraProvider.getInstance(this);
    future.addListener(() -> bind(future), this::runOnUiThread);
  }

  private void bind(ListenableFuture<ProcessCameraProvider> future) {
    Preview preview = new Preview.Builder().build();
    preview.setSurfaceProvider(view.getSurfaceProvider());
    ImageAnalysis frames =
        new ImageAnalysis.Builder()
            .setBackpressureStrategy(ImageAnalysis.STRATEGY_KEEP_ONLY_LATEST)
            .setOutputImageFormat(ImageAnalysis.OUTPUT_IMAGE_FORMAT_RGBA_8888)
            .setOutputImageRotationEnabled(true)
            .build();
    frames.setAnalyzer(worker, this::look);
    try {
      future.get().bindToLifecycle(this, CameraSelector.DEFAULT_BACK_CAMERA, preview, frames);
    } catch (ExecutionException | InterruptedException | IllegalArgumentException error) {
      show("no camera: " + error.getMessage());
    }
  }

  private void look(ImageProxy frame) {
    try (ImageProxy image = frame) {
      if (classifier == null) classifier = new FrameClassifier(getString(R.string.network_library));
      ImageProxy.PlaneProxy pixels = image.getPlanes()[0];
      show(classifier.describe(pixels.getBuffer(), image.getWidth(), image.getHeight(), pixels.getRowStride()));
    } catch (RuntimeException | UnsatisfiedLinkError error) {
      show(error.toString());
    }
  }

  private void show(String words) {
    runOnUiThread(() -> text.setText(words));
  }

  @Override
  protected void onDestroy() {
    super.onDestroy();
    worker.execute(
        () -> {
          if (classifier != null) classifier.close();
        });
    worker.shutdown();
  }
}
