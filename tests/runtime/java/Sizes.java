import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Arrays;
import tvmflow.Network;

/** Runs a network of 1 to 4 rows of two numbers, whose output is its input; prints what was not as it should be. */
public final class Sizes {
  private static void check(boolean is, String what) {
    if (!is) throw new AssertionError(what);
  }

  public static void main(String[] arguments) {
    try (Network network = new Network(arguments[0])) {
      check(network.getSizes().size() == 1 && network.getSizes().get(0).name.equals("rows"), "the name of the size");
      check(Arrays.equals(network.getSizes().get(0).buckets, new long[] {2, 4}), "the buckets");
      for (int rows = 1; rows <= 4; ++rows) {
        long[] sizes = {rows};
        Network.Tensor in = network.inputAt(0, sizes), out = network.outputAt(0, sizes);
        check(Arrays.equals(out.shape, new long[] {rows, 2}) && in.bytes == 8 * rows, "the shape of " + rows);
        ByteBuffer x = Network.buffer(in), y = ByteBuffer.allocateDirect(out.bytes).order(ByteOrder.nativeOrder());
        for (int i = 0; i < 2 * rows; ++i) x.putFloat(4 * i, 10 * rows + i);
        network.run(sizes, new ByteBuffer[] {x}, new ByteBuffer[] {y});
        for (int i = 0; i < 2 * rows; ++i) check(y.getFloat(4 * i) == 10 * rows + i, "output " + i + " of " + rows);
      }
      for (long[] wrong : new long[][] {{5}, {0}, {}, {1, 1}}) {
        try {
          network.inputAt(0, wrong);
          check(false, "no exception: " + Arrays.toString(wrong));
        } catch (IllegalArgumentException found) {
          check(wrong.length != 1 || found.getMessage().contains("this network takes 1 to 4"), found.getMessage());
        }
      }
    }
    System.out.println("all is well");
  }
}
