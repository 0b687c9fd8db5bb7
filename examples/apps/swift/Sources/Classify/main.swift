import DigitsTorch
import Foundation

// classify WIDTH HEIGHT PIXELS: the five likeliest classes of a file of raw RGBA pixels.
let words = CommandLine.arguments
guard words.count == 4, let width = Int(words[1]), let height = Int(words[2]) else {
    fatalError("classify WIDTH HEIGHT FILE")
}
let pixels = try Data(contentsOf: URL(fileURLWithPath: words[3]))
let network = try Network(Networks.digits_torch)
let guesses = try pixels.withUnsafeBytes {
    try network.classify($0, width: width, height: height, format: .rgba, k: 5)
}
for guess in guesses {
    print(guess.label ?? "\(guess.index)", guess.probability)
}
