// The hand-written plan through the C++ header; exits with 0 when all is as it should be.
#include "tvmflow.hpp"

extern "C" const tvmflow_api plan_api;

int main() {
  tvmflow::network moved(&plan_api);
  tvmflow::network net(std::move(moved));
  std::vector<float> x(1000, 3.0f), y(1000), z(1000);
  net.run({x.data()}, {y.data(), z.data()});
  if (y[0] != 8 || z[0] != 4 || y[999] != 6 || net.output(1).size != 4000) return 1;
  if (net.top(y, 2)[0].first != 2 || net.top(y, 2)[1].first != 1) return 2;
  try {
    x[0] = -9;
    net.run({x.data()}, {y.data(), z.data()});
    return 3;
  } catch (const tvmflow::error &found) {
    if (found.status() != TVMFLOW_KERNEL_FAILED || std::string(found.what()) != "ValueError: a[0] is negative") return 4;
  }
  try {
    net.run({x.data()}, {y.data()});
    return 5;
  } catch (const tvmflow::error &) {
  }
  try {
    const tvmflow_image image = {x.data(), 1, 1, 0, TVMFLOW_GRAY};
    if (net.images()) return 9;
    net.classify(image);
    return 10;
  } catch (const tvmflow::error &) {
  }
  try {
    net.input(1);
    return 6;
  } catch (const tvmflow::error &) {
  }
  try {
    tvmflow_options options = tvmflow_options();
    options.threads = TVMFLOW_MAX_THREADS + 1;
    tvmflow::network refused(&plan_api, options);
    return 7;
  } catch (const tvmflow::error &found) {
    return std::string(found.what()) == "more threads than TVMFLOW_MAX_THREADS" ? 0 : 8;
  }
}
