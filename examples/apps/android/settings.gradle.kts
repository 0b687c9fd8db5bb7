pluginManagement { repositories { google(); mavenCentral(); gradlePluginPortal() } }

dependencyResolutionManagement {
    repositories {
        google()
        mavenCentral()
        maven { url = uri("../maven") } // where `tvmflow bundle --format aar` wrote
    }
}

rootProject.name = "camera"
include(":app")
