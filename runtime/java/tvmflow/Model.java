package tvmflow;

/**
 * A network as an app opens it: for each ABI its library for the CPU and, if there is one, that for a GPU. An Android library of a model has its
 * own as constants of its class Models.
 */
public final class Model {
  private static final int WORDS = 3; // of an ABI: its name, the library for the CPU, that for a GPU

  private final String name;
  private final String[] libraries;

  /** libraries: for each ABI its name, the library for the CPU and that for a GPU, of which one may be null. */
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
    for (int i = 0; i < libraries.length; i += WORDS) {
      if (!libraries[i].equals(abi)) continue;
      if (libraries[i + 1] == null) return new Network(libraries[i + 2], threads, cpuMask);
      return libraries[i + 2] == null
          ? new Network(libraries[i + 1], threads, cpuMask)
          : new Network(libraries[i + 1], threads, cpuMask, libraries[i + 2], programs);
    }
    throw new UnsupportedOperationException(name + " has no library for " + abi);
  }
}
