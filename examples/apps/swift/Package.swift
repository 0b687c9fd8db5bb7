// swift-tools-version:5.7
import PackageDescription

// DigitsTorch: the folder into which the package of `tvmflow bundle --format xcframework` was unpacked.
let package = Package(
    name: "Classify",
    platforms: [.macOS("12.0")],
    dependencies: [.package(path: "DigitsTorch")],
    targets: [.executableTarget(name: "Classify", dependencies: ["DigitsTorch"])]
)
