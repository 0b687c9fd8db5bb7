import java.io.DataInputStream;
import java.io.EOFException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Paths;
import tvmflow.Network;

/** Prints the most likely classes of an image: App network.so frame.ppm. */
public final class App {
  /** A frame in memory that the library reads without a copy. */
  private static final class Frame {
    ByteBuffer pixels;
    int width;
    int height;
    Network.Format format;
  }

  private static String word(DataInputStream file) throws IOException {
    StringBuilder text = new StringBuilder();
    int next = file.readUnsignedByte();
    while (!Character.isWhitespace(next)) {
      text.append((char) next);
      next = file.readUnsignedByte();
    }
    return text.toString();
  }

  private static Frame read(String path) throws IOException {
    Frame frame = new Frame();
    try (DataInputStream file = new DataInputStream(Files.newInputStream(Paths.get(path)))) {
      String kind = word(file);
      frame.format = kind.equals("P6") ? Network.Format.RGB : Network.Format.GRAY;
      frame.width = Integer.parseInt(word(file));
      frame.height = Integer.parseInt(word(file));
      if (!kind.matches("P[56]") || !word(file).equals("255")) throw new IOException("no PPM or PGM file of 8 bits");
      byte[] bytes = new byte[Math.multiplyExact(Math.multiplyExact(frame.width, frame.height), kind.equals("P6") ? 3 : 1)];
      file.readFully(bytes);
      frame.pixels = ByteBuffer.allocateDirect(bytes.length);
      frame.pixels.put(bytes).rewind();
    } catch (EOFException | ArithmeticException | NumberFormatException error) {
      throw new IOException("no PPM or PGM file of 8 bits", error);
    }
    return frame;
  }

  public static void main(String[] words) throws IOException {
    Frame frame = read(words[1]);
    try (Network network = new Network(words[0])) {
      for (Network.Guess guess : network.classify(frame.pixels, frame.width, frame.height, 0, frame.format, 5))
        System.out.printf("%5.1f%%  %d %s%n", 100 * guess.probability, guess.number, guess.label);
    }
  }
}
