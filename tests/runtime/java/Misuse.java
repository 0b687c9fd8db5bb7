import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Arrays;
import java.util.List;
import tvmflow.Network;

/** Uses a network of one gray image of 3 x 2 whose scores are its pixels, and misuses it; prints what was not as it should be. */
public final class Misuse {
  private static int faults;

  private interface Call {
    void run();
  }

  private static void check(boolean is, String what) {
    if (!is) {
      System.out.println("wrong: " + what);
      ++faults;
    }
  }

  private static void refused(Class<? extends Throwable> kind, String text, Call call) {
    try {
      call.run();
      check(false, "no exception: " + text);
    } catch (Throwable found) {
      check(kind.isInstance(found) && String.valueOf(found.getMessage()).contains(text), found + " instead of " + text);
    }
  }

  private static ByteBuffer floats(int bytes) {
    return ByteBuffer.allocateDirect(bytes).order(ByteOrder.nativeOrder());
  }

  private static void numbers(Network network) {
    ByteBuffer x = Network.buffer(network.getInputs().get(0)), y = Network.buffer(network.getOutputs().get(0));
    for (int i = 0; i < 6; ++i) x.putFloat(4 * i, i + 0.5f);
    network.run(new ByteBuffer[] {x}, new ByteBuffer[] {y});
    for (int i = 0; i < 6; ++i) check(y.getFloat(4 * i) == i + 0.5f, "output " + i);
    ByteBuffer apart = floats(40);
    apart.position(12);
    network.run(new ByteBuffer[] {x}, new ByteBuffer[] {apart});
    check(apart.position() == 12 && apart.getFloat(16) == 1.5f && apart.getFloat(8) == 0, "a position that is no alignment");
    Class<IllegalArgumentException> bad = IllegalArgumentException.class;
    refused(bad, "0 buffers for", () -> network.run(new ByteBuffer[0], new ByteBuffer[] {y}));
    refused(bad, "direct buffer of 24 bytes", () -> network.run(new ByteBuffer[] {ByteBuffer.allocate(24)}, new ByteBuffer[] {y}));
    refused(bad, "direct buffer of 24 bytes", () -> network.run(new ByteBuffer[] {floats(23)}, new ByteBuffer[] {y}));
    refused(bad, "to be written", () -> network.run(new ByteBuffer[] {x}, new ByteBuffer[] {y.asReadOnlyBuffer()}));
  }

  private static void images(Network network) {
    ByteBuffer pixels = floats(64), y = Network.buffer(network.getOutputs().get(0));
    for (int i = 0; i < 6; ++i) pixels.put(i / 3 * 8 + i % 3, (byte) (40 * i));
    List<Network.Guess> best = network.classify(pixels, 3, 2, 8, Network.Format.GRAY, 2);
    check(best.get(0).number == 5 && best.get(1).number == 4 && best.get(0).probability > best.get(1).probability, "the best two");
    check(best.get(0).label.equals("f\ud83d\ude00"), "a label beyond 16 bits: " + best.get(0).label);
    network.runImage(pixels, 3, 2, 8, Network.Format.GRAY, new ByteBuffer[] {y});
    check(y.getFloat(20) == 200 && y.getFloat(0) == 0, "the image's pixels");
    Class<IllegalArgumentException> bad = IllegalArgumentException.class;
    for (int[] s : new int[][] {{0, 2, 0}, {3, -1, 0}, {32769, 1, 0}, {3, 2, 2}, {3, 2, -8}, {32768, 32768, Integer.MAX_VALUE}, {9, 9, 0}})
      refused(bad, "", () -> network.classify(pixels, s[0], s[1], s[2], Network.Format.GRAY, 1));
    refused(bad, "0 classes", () -> network.classify(pixels, 3, 2, 0, Network.Format.RGBA, 0));
    refused(bad, "k is 1 to the number of classes", () -> network.classify(pixels, 3, 2, 0, Network.Format.RGBA, 7));
    refused(bad, "direct buffer", () -> network.classify(ByteBuffer.allocate(99), 3, 2, 0, Network.Format.GRAY, 1));
    refused(NullPointerException.class, "", () -> network.classify(pixels, 3, 2, 0, null, 1));
  }

  public static void main(String[] words) throws InterruptedException {
    Network network = new Network(words[0], 2, 0);
    check(network.getProcessor().kind.equals("cpu") && network.getProcessor().reason.isEmpty(), "the CPU computes");
    try (Network beside = new Network(words[0], 2, 0, "libnowhere.so", null)) {
      check(beside.getProcessor().kind.equals("cpu") && beside.getProcessor().reason.equals("no library for a GPU was given"), "no GPU");
      numbers(beside);
    }
    refused(IllegalArgumentException.class, "for the CPU, too", () -> new Network(words[0], 2, 0, words[0], "."));
    check(network.getName().equals("tiny@host:float32") && network.getImages() == 1 && network.getLabels().size() == 6, "information");
    check(network.getInputs().toString().equals("[x: float32[1, 1, 2, 3]]"), network.getInputs().toString());
    check(Arrays.equals(network.getOutputs().get(0).shape, new long[] {1, 6}), "the output's shape");
    numbers(network);
    images(network);
    Thread[] threads = new Thread[4];
    for (int i = 0; i < threads.length; ++i) {
      threads[i] = new Thread(() -> images(network));
      threads[i].start();
    }
    for (Thread thread : threads) thread.join();
    network.close();
    network.close();
    refused(IllegalStateException.class, "closed", () -> network.classify(floats(64), 3, 2, 0, Network.Format.GRAY, 1));
    refused(IllegalArgumentException.class, "nowhere", () -> new Network("/nowhere/network.so"));
    refused(IllegalArgumentException.class, "more threads than", () -> new Network(words[0], 65, 0));
    System.out.println(faults == 0 ? "all is well" : faults + " faults");
  }
}
