package example.camera;

import java.nio.ByteBuffer;
import java.util.List;
import java.util.Locale;
import tvmflow.Network;

/** Classifies camera frames and measures the time; independent of Android. For one thread. */
final class FrameClassifier implements AutoCloseable {
  private static final int GUESSES = 5;
  private final Network network;

  /** network: which it closes. */
  FrameClassifier(Network network) {
    if (network.getImages() != 1) {
      network.close();
      throw new IllegalArgumentException(network.getName() + " takes no single image");
    }
    this.network = network;
  }

  /** rgba: a direct buffer, which is read without a copy; stride: bytes from row to row. */
  String describe(ByteBuffer rgba, int width, int height, int stride) {
    long begin = System.nanoTime();
    List<Network.Guess> guesses = network.classify(rgba, width, height, stride, Network.Format.RGBA, Math.min(GUESSES, classes()));
    double milliseconds = (System.nanoTime() - begin) / 1e6;
    StringBuilder text = new StringBuilder(String.format(Locale.ROOT, "%.1f ms%n", milliseconds));
    for (Network.Guess guess : guesses) {
      String name = guess.label.isEmpty() ? Integer.toString(guess.number) : guess.label;
      text.append(String.format(Locale.ROOT, "%5.1f%%  %s%n", 100 * guess.probability, name));
    }
    return text.toString();
  }

  private int classes() {
    long[] shape = network.getOutputs().get(0).shape;
    return (int) shape[shape.length - 1];
  }

  @Override
  public void close() {
    network.close();
  }
}
