package tvmflow;

/**
 * A network as an app opens it: for each ABI its library for the CPU and, if there is one, that for a GPU; before it those for processors with more
 * instructions. An Android library of a model has its own as constants of its class Models.
 */
public final class Model {
  private static final int WORDS = 3; // of an ABI: its name, the library for the CPU, that for a GPU

  private final String name;
  private final String[] libraries;

  /** libraries: for each ABI, perhaps several times, its name, the library for the CPU and that for a GPU, of which one may be null. */
  public Model(String name, String... libraries) {
    if (libraries.length == 0 || libraries.length % WORDS != 0) throw new IllegalArgumentException(libraries.length + " words for " + name);
    this.name = name;
    this.libraries = libraries.clone();
  }

  public String getName() {
    return name;
  }

  /** Open the network as {@link #open(String, int, long)} does, on as many threads as it was tuned for. */
  public Network open(String programs) {
    return open(programs, 0, 0);
  }

  /**
   * Open the network: on the GPU if it has a library for one that passes its self-test, else on the CPU; {@link Network#getProcessor} says which and
   * why. Takes as long as one run or more, so call it on a thread that may wait. programs: an existing folder of the app's where the compiled programs
   * of a GPU are kept, such as getCodeCacheDir(), or null; threads, cpuMask: as of {@link Network}.
   */
  public Network open(String programs, int threads, long cpuMask) {
    String abi = Network.abi();
    UnsupportedOperationException lacks = new UnsupportedOperationException(name + " has no library for " + abi);
    for (int i = 0; i < libraries.length; i += WORDS) {
      if (!libraries[i].equals(abi)) continue;
      try {
        return open(libraries[i + 1], libraries[i + 2], programs, threads, cpuMask);
      } catch (UnsupportedOperationException another) { // this processor has not all of its instructions
        lacks = another;
      }
    }
    throw lacks;
  }

  private static Network open(String cpu, String gpu, String programs, int threads, long cpuMask) {
    if (cpu == null) return new Network(gpu, threads, cpuMask);
    return gpu == null ? new Network(cpu, threads, cpuMask) : new Network(cpu, threads, cpuMask, gpu, programs);
  }
}
