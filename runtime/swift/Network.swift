/// Run networks that tvmflow compiled. Nothing here has run on a device of Apple's yet.

import CNETWORKS

/// Why a network could not be created or run.
public struct NetworkError: Error, CustomStringConvertible {
    public let description: String
}

/// An instance of a network. It may be used by any thread, by one at a time: a second caller waits.
public final class Network {
    /// Element types; a network's 16-bit floats are given and returned as their bits.
    public enum Kind: UInt32 {
        case float32 = 0, float16, bfloat16, int8, uint8, int32, int64, bool
    }

    /// The order of the channels of a pixel in memory, 8 bits each.
    public enum Format: UInt32 {
        case rgb = 0, bgr, rgba, gray
    }

    /// An input or output; `shape` has the batch first.
    public struct Tensor {
        public let name: String
        public let shape: [Int]
        public let kind: Kind
        public let byteCount: Int
    }

    /// A class and its probability.
    public struct Guess {
        public let index: Int
        public let label: String?
        public let probability: Float
    }

    public let name: String
    public let inputs: [Tensor]
    public let outputs: [Tensor]
    public let labels: [String]

    private let api: UnsafePointer<tvmflow_api>
    private var instance: OpaquePointer?

    /// Create an instance of a network of `Networks`. threads: 0 for as many as it was tuned for.
    public init(_ api: UnsafePointer<tvmflow_api>, threads: Int = 0) throws {
        let table = api.pointee
        self.api = api
        name = String(cString: table.network)
        inputs = try (0..<table.inputs).map { try Network.tensor(table.input, $0) }
        outputs = try (0..<table.outputs).map { try Network.tensor(table.output, $0) }
        labels = (0..<Int(table.label_count)).map { at in table.labels[at].map { String(cString: $0) } ?? "" }
        var options = tvmflow_options()
        options.threads = UInt32(threads)
        try check(table.create(&options, &instance))
    }

    deinit {
        api.pointee.destroy(instance)
    }

    /// Run once with the contents of each input by name, of exactly its bytes; return those of each output.
    public func run(bytes given: [String: [UInt8]]) throws -> [String: [UInt8]] {
        guard given.count == inputs.count else {
            throw NetworkError(description: "\(given.count) inputs, and \(name) takes \(inputs.count)")
        }
        var memory: [UnsafeMutableRawPointer] = []
        defer { memory.forEach { $0.deallocate() } }
        for one in inputs {
            guard let content = given[one.name], content.count == one.byteCount else {
                throw NetworkError(description: "input \(one.name) needs \(one.byteCount) bytes")
            }
            memory.append(Network.allocate(one.byteCount))
            content.withUnsafeBytes { memory[memory.count - 1].copyMemory(from: $0.baseAddress!, byteCount: $0.count) }
        }
        outputs.forEach { memory.append(Network.allocate($0.byteCount)) }
        let sources: [UnsafeRawPointer?] = memory.prefix(inputs.count).map { UnsafeRawPointer($0) }
        let results: [UnsafeMutableRawPointer?] = memory.suffix(outputs.count).map { $0 }
        try check(api.pointee.run(instance, sources, results))
        var found: [String: [UInt8]] = [:]
        for (one, place) in zip(outputs, memory.suffix(outputs.count)) {
            found[one.name] = [UInt8](UnsafeRawBufferPointer(start: place, count: one.byteCount))
        }
        return found
    }

    /// Run once with numbers; all inputs and outputs are float32.
    public func run(_ given: [String: [Float]]) throws -> [String: [Float]] {
        guard (inputs + outputs).allSatisfy({ $0.kind == .float32 }) else {
            throw NetworkError(description: "\(name) has other types than float32: use run(bytes:)")
        }
        let found = try run(bytes: given.mapValues { numbers in numbers.withUnsafeBytes { [UInt8]($0) } })
        return found.mapValues { content in content.withUnsafeBytes { [Float]($0.bindMemory(to: Float.self)) } }
    }

    /// Return the k likeliest classes of an image as the network was trained to see it. stride: bytes of a row; 0: no gaps.
    public func classify(
        _ pixels: UnsafeRawBufferPointer, width: Int, height: Int, stride: Int = 0, format: Format = .rgba, k: Int = 1
    ) throws -> [Guess] {
        let pixelBytes = format == .rgba ? 4 : format == .gray ? 1 : 3
        let row = stride == 0 ? width * pixelBytes : stride
        guard k > 0, width > 0, height > 0, row >= width * pixelBytes,
            pixels.count >= row * (height - 1) + width * pixelBytes
        else {
            throw NetworkError(description: "\(pixels.count) bytes for an image of \(width) x \(height)")
        }
        var image = tvmflow_image()
        image.pixels = pixels.baseAddress
        image.width = UInt32(width)
        image.height = UInt32(height)
        image.stride = row
        image.format = tvmflow_pixels(rawValue: format.rawValue)
        var indices = [UInt32](repeating: 0, count: k)
        var shares = [Float](repeating: 0, count: k)
        try check(api.pointee.classify(instance, &image, UInt32(k), &indices, &shares))
        return zip(indices, shares).map { index, share in
            Guess(index: Int(index), label: Int(index) < labels.count ? labels[Int(index)] : nil, probability: share)
        }
    }

    private static func allocate(_ size: Int) -> UnsafeMutableRawPointer {
        UnsafeMutableRawPointer.allocate(byteCount: max(size, 1), alignment: Int(TVMFLOW_ALIGNMENT))
    }

    private static func tensor(
        _ find: (UInt32, UnsafeMutablePointer<tvmflow_tensor>?) -> tvmflow_status, _ at: UInt32
    ) throws -> Tensor {
        var info = tvmflow_tensor()
        guard find(at, &info) == TVMFLOW_OK, let kind = Kind(rawValue: info.dtype.rawValue) else {
            throw NetworkError(description: "tensor \(at) cannot be described")
        }
        let shape = (0..<Int(info.ndim)).map { Int(info.shape[$0]) }
        return Tensor(name: String(cString: info.name), shape: shape, kind: kind, byteCount: info.size)
    }

    private func check(_ status: tvmflow_status) throws {
        guard status == TVMFLOW_OK else {
            throw NetworkError(description: String(cString: api.pointee.last_error()))
        }
    }
}
