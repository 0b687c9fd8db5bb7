package tvmflow;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;

/**
 * An instance of a network that tvmflow compiled to one shared object. Inputs and outputs are direct buffers, which the library uses
 * in place; {@link #buffer} allocates them. Calls from several threads wait for each other. The glue, libtvmflow_jni.so, has to be on
 * java.library.path, or among the libraries of an Android app.
 *
 * <p>Invalid arguments raise IllegalArgumentException, a closed instance IllegalStateException.
 */
public final class Network implements AutoCloseable {
  /** The order of the channels of a pixel in memory, 8 bits each. */
  public enum Format {
    RGB(3),
    BGR(3),
    RGBA(4),
    GRAY(1);

    final int bytes;

    Format(int bytes) {
      this.bytes = bytes;
    }
  }

  /** An input or output; the batch is the first size of its shape. */
  public static final class Tensor {
    public final String name;
    public final long[] shape;
    public final String dtype;
    public final int bytes;

    Tensor(String name, long[] shape, String dtype, int bytes) {
      this.name = name;
      this.shape = shape;
      this.dtype = dtype;
      this.bytes = bytes;
    }

    @Override
    public String toString() {
      return name + ": " + dtype + Arrays.toString(shape);
    }
  }

  /** A dynamic size of inputs: 1 to the last of its buckets, which ascend. */
  public static final class Size {
    public final String name;
    public final long[] buckets;

    Size(String name, long[] buckets) {
      this.name = name;
      this.buckets = buckets;
    }
  }

  /** A class of an image; its label is empty if the network has no names. */
  public static final class Guess {
    public final int number;
    public final float probability;
    public final String label;

    Guess(int number, float probability, String label) {
      this.number = number;
      this.probability = probability;
      this.label = label;
    }
  }

  /** The processor that runs the network: kind is cpu or gpu; reason: why the CPU replaces a GPU; the rest is from the GPU's driver. */
  public static final class Processor {
    public final String kind;
    public final String reason;
    public final String device;
    public final String driver;
    public final String version;

    Processor(byte[][] texts) {
      kind = text(texts[0]);
      reason = text(texts[1]);
      device = text(texts[2]);
      driver = text(texts[3]);
      version = text(texts[4]);
    }
  }

  private static final String[] DTYPES = {"float32", "float16", "bfloat16", "int8", "uint8", "int32", "int64", "bool"};
  private static final int ALIGNMENT = 64;
  private static final int MAX_SIDE = 32768;

  static {
    System.loadLibrary("tvmflow_jni");
  }

  private long handle;
  private final String name;
  private final List<Tensor> inputs;
  private final List<Tensor> outputs;
  private final List<String> labels;
  private final List<Size> sizes;
  private final int images;

  /** Open a library on as many threads as the network was tuned for. */
  public Network(String library) {
    this(library, 0, 0);
  }

  /** threads: 0 for as many as it was tuned for; cpuMask: bit i allows CPU i, 0 allows all. */
  public Network(String library, int threads, long cpuMask) {
    this(library, threads, cpuMask, null, null);
  }

  /**
   * Open a library with the same network's library for a GPU, which is used if its self-test passes; see {@link #getProcessor}.
   * programs: an existing folder for its compiled programs, or null.
   */
  public Network(String library, int threads, long cpuMask, String gpuLibrary, String programs) {
    handle = open(new byte[][] {path(library), path(gpuLibrary), path(programs)}, threads, cpuMask);
    name = text(name(handle));
    inputs = tensors(false);
    outputs = tensors(true);
    sizes = readSizes();
    images = images(handle);
    List<String> names = new ArrayList<>();
    for (byte[] label : labels(handle)) names.add(text(label));
    labels = Collections.unmodifiableList(names);
  }

  /** model@target:precision. */
  public String getName() {
    return name;
  }

  public List<Tensor> getInputs() {
    return inputs;
  }

  public List<Tensor> getOutputs() {
    return outputs;
  }

  /** The dynamic sizes; none if all shapes are fixed. */
  public List<Size> getSizes() {
    return sizes;
  }

  /** The input in a run with these sizes, one number for each of {@link #getSizes}. */
  public synchronized Tensor inputAt(int i, long[] sizes) {
    return sized(inputs.get(i), false, i, sizes);
  }

  /** The output in a run with these sizes. */
  public synchronized Tensor outputAt(int i, long[] sizes) {
    return sized(outputs.get(i), true, i, sizes);
  }

  /** Names of classes; none if the network has none. */
  public List<String> getLabels() {
    return labels;
  }

  /** The processor of the next run, and the reason. */
  public synchronized Processor getProcessor() {
    return new Processor(processor(opened()));
  }

  /** The number of images of a run; 0 if the network takes none. */
  public int getImages() {
    return images;
  }

  /** Allocate a direct buffer for an input or output, which the library uses without a copy. */
  public static ByteBuffer buffer(Tensor tensor) {
    ByteBuffer whole = ByteBuffer.allocateDirect(tensor.bytes + ALIGNMENT);
    int before = padding(whole, ALIGNMENT);
    whole.position(before);
    whole.limit(before + tensor.bytes);
    return whole.slice().order(ByteOrder.nativeOrder());
  }

  /** Run once: a direct buffer for each input and output, used from its position on, which does not change. */
  public synchronized void run(ByteBuffer[] inputs, ByteBuffer[] outputs) {
    run(opened(), slices(inputs, this.inputs, false), slices(outputs, this.outputs, true));
  }

  /** Run on inputs with these sizes, which may be smaller than the largest; outputs are those of {@link #outputAt}. */
  public synchronized void run(long[] sizes, ByteBuffer[] inputs, ByteBuffer[] outputs) {
    List<Tensor> from = new ArrayList<>(), to = new ArrayList<>();
    for (int i = 0; i < this.inputs.size(); ++i) from.add(inputAt(i, sizes));
    for (int i = 0; i < this.outputs.size(); ++i) to.add(outputAt(i, sizes));
    runSized(opened(), sizes, slices(inputs, from, false), slices(outputs, to, true));
  }

  /** Run a network that takes one image. stride: bytes from row to row, 0 for contiguous rows. */
  public synchronized void runImage(ByteBuffer pixels, int width, int height, int stride, Format format, ByteBuffer[] outputs) {
    ByteBuffer image = image(pixels, width, height, stride, format);
    runImage(opened(), image, width, height, stride, format.ordinal(), slices(outputs, this.outputs, true));
  }

  /** Return the k likeliest classes of an image, the likeliest first. */
  public synchronized List<Guess> classify(ByteBuffer pixels, int width, int height, int stride, Format format, int k) {
    ByteBuffer image = image(pixels, width, height, stride, format);
    if (k < 1) throw new IllegalArgumentException(k + " classes");
    int[] numbers = new int[k];
    float[] probabilities = new float[k];
    classify(opened(), image, width, height, stride, format.ordinal(), numbers, probabilities);
    List<Guess> found = new ArrayList<>();
    for (int i = 0; i < k; ++i) found.add(new Guess(numbers[i], probabilities[i], numbers[i] < labels.size() ? labels.get(numbers[i]) : ""));
    return found;
  }

  /** Free the instance; safe to repeat. */
  @Override
  public synchronized void close() {
    long closed = handle;
    handle = 0;
    if (closed != 0) close(closed);
  }

  private long opened() {
    if (handle == 0) throw new IllegalStateException("the network is closed");
    return handle;
  }

  private List<Tensor> tensors(boolean areOutputs) {
    List<Tensor> found = new ArrayList<>();
    for (int i = 0; i < count(handle, areOutputs); ++i) {
      long[] numbers = new long[2];
      byte[][] names = new byte[1][];
      long[] shape = tensor(handle, areOutputs, i, names, numbers);
      if (numbers[1] > Integer.MAX_VALUE - ALIGNMENT) throw new IllegalArgumentException("a tensor of " + numbers[1] + " bytes");
      found.add(new Tensor(text(names[0]), shape, DTYPES[(int) numbers[0]], (int) numbers[1]));
    }
    return Collections.unmodifiableList(found);
  }

  private List<Size> readSizes() {
    List<Size> found = new ArrayList<>();
    byte[][] names = new byte[1][];
    for (long[] buckets; (buckets = size(handle, found.size(), names)) != null; ) found.add(new Size(text(names[0]), buckets));
    return Collections.unmodifiableList(found);
  }

  private Tensor sized(Tensor largest, boolean isOutput, int i, long[] sizes) {
    if (this.sizes.isEmpty() || sizes.length != this.sizes.size())
      throw new IllegalArgumentException(sizes.length + " sizes for a network of " + this.sizes.size());
    long[] shape = new long[largest.shape.length];
    shape(opened(), isOutput, i, sizes, shape);
    long bytes = largest.bytes, elements = 1;
    for (int axis = 0; axis < shape.length; ++axis) {
      bytes /= largest.shape[axis];
      elements *= shape[axis];
    }
    return new Tensor(largest.name, shape, largest.dtype, (int) (bytes * elements));
  }

  private static ByteBuffer[] slices(ByteBuffer[] buffers, List<Tensor> tensors, boolean areWritten) {
    if (buffers.length != tensors.size()) throw new IllegalArgumentException(buffers.length + " buffers for " + tensors);
    ByteBuffer[] found = new ByteBuffer[buffers.length];
    for (int i = 0; i < buffers.length; ++i) {
      Tensor tensor = tensors.get(i);
      if (!buffers[i].isDirect() || buffers[i].remaining() < tensor.bytes || (areWritten && buffers[i].isReadOnly()))
        throw new IllegalArgumentException(tensor + " needs a direct buffer of " + tensor.bytes + " bytes" + (areWritten ? " to be written" : ""));
      found[i] = buffers[i].slice();
    }
    return found;
  }

  private ByteBuffer image(ByteBuffer pixels, int width, int height, int stride, Format format) {
    if (images != 1) throw new IllegalArgumentException("the network takes " + images + " images");
    if (width < 1 || height < 1 || width > MAX_SIDE || height > MAX_SIDE)
      throw new IllegalArgumentException("width and height of an image are 1 to " + MAX_SIDE);
    long row = (long) width * format.bytes;
    if (stride != 0 && stride < row) throw new IllegalArgumentException("the stride of an image is less than its row");
    long size = (stride == 0 ? row : stride) * (height - 1) + row;
    if (!pixels.isDirect() || pixels.remaining() < size)
      throw new IllegalArgumentException("an image of " + width + " x " + height + " needs a direct buffer of " + size + " bytes");
    return pixels.slice();
  }

  private static byte[] path(String name) {
    return name == null ? null : (name + "\0").getBytes(StandardCharsets.UTF_8);
  }

  private static String text(byte[] bytes) {
    return new String(bytes, StandardCharsets.UTF_8);
  }

  /** Returns the ABI of this process, as bundles name it. */
  static native String abi();

  private static native long open(byte[][] paths, int threads, long cpuMask);

  private static native byte[][] processor(long handle);

  private static native void close(long handle);

  private static native byte[] name(long handle);

  private static native int count(long handle, boolean ofOutputs);

  private static native int images(long handle);

  private static native byte[][] labels(long handle);

  /** Returns the shape; name[0], and numbers: dtype and bytes. */
  private static native long[] tensor(long handle, boolean isOutput, int i, byte[][] name, long[] numbers);

  /** Returns the buckets of a size, or null; name[0]. */
  private static native long[] size(long handle, int i, byte[][] name);

  private static native void shape(long handle, boolean isOutput, int i, long[] sizes, long[] shape);

  private static native void runSized(long handle, long[] sizes, ByteBuffer[] inputs, ByteBuffer[] outputs);

  private static native int padding(ByteBuffer buffer, int alignment);

  private static native void run(long handle, ByteBuffer[] inputs, ByteBuffer[] outputs);

  private static native void runImage(long handle, ByteBuffer pixels, int width, int height, int stride, int format, ByteBuffer[] outputs);

  private static native void classify(
      long handle, ByteBuffer pixels, int width, int height, int stride, int format, int[] numbers, float[] probabilities);
}
