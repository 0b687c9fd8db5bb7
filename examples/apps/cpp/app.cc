// Classify a camera frame: read a PPM or PGM file, or a raw RGB frame of a given size, and print the five most likely classes. With --gpu and the
// network's GPU library the GPU computes, and the CPU where there is none that can be trusted.
#include <cstdlib>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <iterator>
#include <limits>

#include "tvmflow.hpp"

extern "C" const tvmflow_api *tvmflow_network(void);

struct frame {
  std::vector<char> pixels;
  uint32_t width = 0, height = 0;
  tvmflow_pixels format = TVMFLOW_RGB;

  tvmflow_image image() const {
    const uint64_t wanted = uint64_t(width) * height * (format == TVMFLOW_GRAY ? 1 : 3);
    if (pixels.size() < wanted) throw std::runtime_error("the frame is cut off");
    return {pixels.data(), width, height, 0, format};
  }
};

// The next number of a PPM's header; comments begin with #.
static uint32_t number(std::istream &file) {
  while (file >> std::ws && file.peek() == '#') file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  uint32_t value = 0;
  if (!(file >> value) || value > TVMFLOW_MAX_SIDE) throw std::runtime_error("no PPM or PGM file of 8 bits");
  return value;
}

static frame read_frame(const std::vector<std::string> &words) {
  std::ifstream file(words.at(0), std::ios::binary);
  frame picture;
  if (!file) throw std::runtime_error("no file " + words[0]);
  if (words.size() == 3) {
    picture.width = static_cast<uint32_t>(std::stoul(words[1]));
    picture.height = static_cast<uint32_t>(std::stoul(words[2]));
  } else {
    std::string kind(2, ' ');
    file.read(&kind[0], 2);
    if (kind != "P5" && kind != "P6") throw std::runtime_error("no PPM or PGM file of 8 bits");
    picture.format = kind == "P5" ? TVMFLOW_GRAY : TVMFLOW_RGB;
    picture.width = number(file);
    picture.height = number(file);
    if (number(file) != 255) throw std::runtime_error("no PPM or PGM file of 8 bits");
    file.get();
  }
  picture.pixels.assign(std::istreambuf_iterator<char>(file), {});
  return picture;
}

int main(int count, char **words) try {
  std::string gpu;
  if (count > 2 && std::string(words[1]) == "--gpu") {
    gpu = words[2];
    words += 2;
    count -= 2;
  }
  if (count != 2 && count != 4) throw std::runtime_error("usage: app [--gpu LIBRARY] FRAME.ppm, or app [--gpu LIBRARY] FRAME.rgb WIDTH HEIGHT");
  const frame picture = read_frame({words + 1, words + count});
  // In an app: once, for all frames.
  tvmflow::network net = gpu.empty() ? tvmflow::network(tvmflow_network()) : tvmflow::network(tvmflow_network(), tvmflow::gpu_library(gpu));
  for (const auto &guess : net.classify(picture.image(), 5))
    std::cout << std::fixed << std::setprecision(1) << std::setw(5) << 100 * guess.probability << "%  " << guess.number << " " << guess.label << "\n";
  const tvmflow::processor_info who = net.processor();
  if (!gpu.empty() && who.device == tvmflow::kDLCPU) std::cerr << "computed by the CPU: " << who.reason << "\n";
  if (who.device != tvmflow::kDLCPU) std::cerr << "computed by " << who.gpu << " (" << who.driver << " " << who.version << ")\n";
  return EXIT_SUCCESS;
} catch (const std::exception &error) {
  std::cerr << error.what() << "\n";
  return EXIT_FAILURE;
}
