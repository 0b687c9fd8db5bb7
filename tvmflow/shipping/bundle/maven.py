"""Describe the artifacts of a Maven repository: POM, Gradle's module metadata, list of versions, checksums."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from tvmflow.support.files import write_atomic
from tvmflow.support.version import __version__

CHECKSUMS = ("md5", "sha1", "sha256", "sha512")
_POM = """\
<?xml version="1.0" encoding="UTF-8"?>
<project xmlns="http://maven.apache.org/POM/4.0.0" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"
         xsi:schemaLocation="http://maven.apache.org/POM/4.0.0 https://maven.apache.org/xsd/maven-4.0.0.xsd">
  <!-- do_not_remove: published-with-gradle-metadata -->
  <modelVersion>4.0.0</modelVersion>
  <groupId>{group}</groupId>
  <artifactId>{artifact}</artifactId>
  <version>{version}</version>
  <packaging>{packaging}</packaging>
  <description>{description}</description>
{dependencies}</project>
"""
_DEPENDENCIES = "  <dependencies>\n{lines}  </dependencies>\n"
_DEPENDENCY = """\
    <dependency>
      <groupId>{group}</groupId>
      <artifactId>{artifact}</artifactId>
      <version>{version}</version>{type}
      <scope>compile</scope>
    </dependency>
"""
_VERSIONS = """\
<?xml version="1.0" encoding="UTF-8"?>
<metadata>
  <groupId>{group}</groupId>
  <artifactId>{artifact}</artifactId>
  <versioning>
    <latest>{latest}</latest>
    <release>{latest}</release>
    <versions>
{versions}
    </versions>
  </versioning>
</metadata>
"""


@dataclass(frozen=True)
class Coordinates:
    """An artifact of a Maven repository. packaging: aar or jar."""

    group: str
    artifact: str
    version: str
    packaging: str = "aar"

    @property
    def text(self) -> str:
        return f"{self.group}:{self.artifact}:{self.version}"

    def path(self, repository: Path, ending: str = "") -> Path:
        """Return the path of a file of the artifact. ending: behind its version, by default that of its packaging."""
        name = f"{self.artifact}-{self.version}{ending or f'.{self.packaging}'}"
        return repository.joinpath(*self.group.split("."), self.artifact, self.version, name)


def describe_artifact(
    repository: Path, artifact: Coordinates, description: str, dependencies: Sequence[Coordinates] = ()
) -> None:
    """Write what a repository says about an artifact whose main file is there, and the checksums of all its files."""
    main = artifact.path(repository)
    lines = "".join(
        _DEPENDENCY.format(
            group=one.group,
            artifact=one.artifact,
            version=one.version,
            type=f"\n      <type>{one.packaging}</type>" if one.packaging != "jar" else "",
        )
        for one in dependencies
    )
    pom = _POM.format(
        group=artifact.group,
        artifact=artifact.artifact,
        version=artifact.version,
        packaging=artifact.packaging,
        description=escape(description),
        dependencies=_DEPENDENCIES.format(lines=lines) if lines else "",
    )
    write_atomic(artifact.path(repository, ".pom"), pom)
    module = json.dumps(_module(artifact, main, dependencies), indent=1) + "\n"
    write_atomic(artifact.path(repository, ".module"), module)
    for file in sorted(main.parent.iterdir()):
        if file.is_file() and not file.name.startswith(".") and file.suffix.removeprefix(".") not in CHECKSUMS:
            write_checksums(file)
    listed = main.parent.parent / "maven-metadata.xml"
    found = sorted((one.name for one in listed.parent.iterdir() if one.is_dir()), key=_order)
    versions = "\n".join(f"      <version>{one}</version>" for one in found)
    write_atomic(
        listed,
        _VERSIONS.format(group=artifact.group, artifact=artifact.artifact, latest=found[-1], versions=versions),
    )
    write_checksums(listed)


def _module(artifact: Coordinates, main: Path, dependencies: Sequence[Coordinates]) -> dict[str, Any]:
    """Return Gradle's module metadata: the same files to compile against and to run."""
    data = main.read_bytes()
    file: dict[str, Any] = {"name": main.name, "url": main.name, "size": len(data)}
    file |= {kind: _digest(kind, data) for kind in reversed(CHECKSUMS)}
    needs = [{"group": one.group, "module": one.artifact, "version": {"requires": one.version}} for one in dependencies]
    variants = [
        {
            "name": f"release{name}Publication",
            "attributes": {
                "org.gradle.category": "library",
                "org.gradle.dependency.bundling": "external",
                "org.gradle.libraryelements": artifact.packaging,
                "org.gradle.usage": usage,
            },
            "dependencies": needs,
            "files": [file],
        }
        for name, usage in (("Api", "java-api"), ("Runtime", "java-runtime"))
    ]
    component = {
        "group": artifact.group,
        "module": artifact.artifact,
        "version": artifact.version,
        "attributes": {"org.gradle.status": "release"},
    }
    return {
        "formatVersion": "1.1",
        "component": component,
        "createdBy": {"tvmflow": {"version": __version__}},
        "variants": variants,
    }


def write_checksums(file: Path) -> None:
    """Write the checksum files of a Maven repository."""
    data = file.read_bytes()
    for kind in CHECKSUMS:
        write_atomic(file.with_name(f"{file.name}.{kind}"), _digest(kind, data))


def _digest(kind: str, data: bytes) -> str:
    return hashlib.new(kind, data, usedforsecurity=False).hexdigest()


def _order(version: str) -> list[tuple[int, str]]:
    """Return a key that sorts versions as Maven does where they are numbers and words."""
    return [(int(word), "") if word.isdigit() else (-1, word) for word in re.split(r"[.-]", version)]
