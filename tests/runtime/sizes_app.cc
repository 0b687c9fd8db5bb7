// The hand-written plan of several sizes through the C++ header; exits with 0 when all is as it should be.
#include "tvmflow.hpp"

extern "C" const tvmflow_api plan_api;

int main() {
  tvmflow::network net(&plan_api);
  if (net.sizes() != 2 || std::string(net.size(1).name) != "length" || net.size(1).buckets[1] != 7) return 1;
  const std::vector<int64_t> sizes = {2, 5};
  if (net.input_shape(0, sizes) != std::vector<int64_t>({2, 5, 2}) || net.output_shape(1, sizes) != std::vector<int64_t>({2, 3})) return 2;
  std::vector<int32_t> x(20, 1), y(10), z(6);
  net.run_sized(sizes, {x.data()}, {y.data(), z.data()});
  if (y != std::vector<int32_t>(10, 102) || z != std::vector<int32_t>(6, 102)) return 3;
  for (const std::vector<int64_t> &wrong : {std::vector<int64_t>(), std::vector<int64_t>({1}), std::vector<int64_t>({1, 8})}) {
    try {
      net.run_sized(wrong, {x.data()}, {y.data(), z.data()});
      return 4;
    } catch (const tvmflow::error &) {
    }
    try {
      net.output_shape(0, wrong);
      return 5;
    } catch (const tvmflow::error &) {
    }
  }
  return 0;
}
