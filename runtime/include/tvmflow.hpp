// tvmflow.hpp: the C API of tvmflow.h for C++11, an instance as an object.
//
//     tvmflow::network net(tvmflow_network_digits());
//     std::vector<float> scores = net.run<float>(image.data());
//
// With the network's GPU library, which the CPU replaces where it cannot be trusted:
//
//     tvmflow::gpu_library gpu("libdigits_opencl.so");
//     tvmflow_gpu where = tvmflow_gpu();
//     where.cache = "/data/data/my.app/cache/programs";
//     tvmflow::network net(tvmflow_network_digits(), gpu, where);
//     net.processor().device == tvmflow::kDLOpenCL;  // or kDLCPU, and why
//
// All memory that an app passes or gets is the host's: there is no pointer to a GPU's buffer that could be read by mistake.
#ifndef TVMFLOW_HPP
#define TVMFLOW_HPP

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tvmflow.h"

namespace tvmflow {

// The error of a call that did not return TVMFLOW_OK.
class error : public std::runtime_error {
 public:
  error(tvmflow_status status, const std::string &text) : std::runtime_error(text), status_(status) {}
  tvmflow_status status() const { return status_; }

 private:
  tvmflow_status status_;
};

// Devices by their numbers in DLPack.
enum device_type { kDLCPU = 1, kDLOpenCL = 4, kDLVulkan = 7 };

// The processor of the next run. reason: why the CPU computes although there is a GPU library; gpu, driver, version: the GPU by its driver.
struct processor_info {
  device_type device;
  std::string reason, gpu, driver, version;
};

// A network's library for a GPU, opened by name. A missing one is no error: the CPU computes, and processor().reason says so.
class gpu_library {
 public:
  gpu_library() {}
  explicit gpu_library(const std::string &path) : handle_(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL), closer()) {
    if (!handle_) {
      const char *text = dlerror();
      missing_ = text ? text : "it cannot be opened";
      return;
    }
    void *found = dlsym(handle_.get(), "tvmflow_network");
    tvmflow_entry entry = nullptr;
    static_assert(sizeof entry == sizeof found, "functions and data have pointers of one size");
    std::memcpy(&entry, &found, sizeof entry);
    api_ = entry ? entry() : nullptr;
    if (!api_) missing_ = "it is no library of a network";
  }

  const tvmflow_api *api() const { return api_; }
  const std::string &missing() const { return missing_; }

 private:
  friend class network;
  struct closer {
    void operator()(void *handle) const {
      if (handle) dlclose(handle);
    }
  };
  std::shared_ptr<void> handle_;
  const tvmflow_api *api_ = nullptr;
  std::string missing_;
};

// The types of elements that have a type in C++, by their numbers in tvmflow.h.
template <typename T>
struct element;
template <>
struct element<float> { static constexpr tvmflow_dtype dtype = TVMFLOW_FLOAT32; };
template <>
struct element<int8_t> { static constexpr tvmflow_dtype dtype = TVMFLOW_INT8; };
template <>
struct element<uint8_t> { static constexpr tvmflow_dtype dtype = TVMFLOW_UINT8; };
template <>
struct element<int32_t> { static constexpr tvmflow_dtype dtype = TVMFLOW_INT32; };
template <>
struct element<int64_t> { static constexpr tvmflow_dtype dtype = TVMFLOW_INT64; };

// A class of an image; label: empty if the network has no names.
struct guess {
  uint32_t number;
  float probability;
  std::string label;
};

// An instance of a network. It may be moved, not copied; calls from several threads wait for each other.
class network {
 public:
  // driver: of the accelerator, for a network with a part that runs on it.
  explicit network(const tvmflow_api *api, const tvmflow_options &options = tvmflow_options(), const tvmflow_driver *driver = nullptr) : api_(api), instance_(nullptr, api->destroy) {
    if (api->abi_version != TVMFLOW_ABI_VERSION)
      throw error(TVMFLOW_BAD_ARGUMENT, "the library has another ABI version than tvmflow.h");
    tvmflow_instance *made = nullptr;
    if (driver && api->size <= offsetof(tvmflow_api, create_on)) throw error(TVMFLOW_BAD_ARGUMENT, "the library knows no drivers");
    check(driver ? api->create_on(&options, driver, &made) : api->create(&options, &made));
    instance_.reset(made);
  }

  // The network on a GPU, computed by the CPU where there is no usable one, where its outputs differ from the CPU's, and from its first failure on.
  // cpu: the network's library for the CPU; where: as in tvmflow.h, its size is set here.
  network(const tvmflow_api *cpu, const gpu_library &gpu, tvmflow_gpu where = tvmflow_gpu(), const tvmflow_options &options = tvmflow_options())
      : api_(cpu), gpu_(gpu), instance_(nullptr, cpu->destroy) {
    if (cpu->abi_version != TVMFLOW_ABI_VERSION || cpu->size <= offsetof(tvmflow_api, create_with_gpu))
      throw error(TVMFLOW_BAD_ARGUMENT, "the library knows no GPU libraries");
    where.size = sizeof where;
    tvmflow_instance *made = nullptr;
    check(cpu->create_with_gpu(&options, gpu.api(), &where, nullptr, &made));
    instance_.reset(made);
  }

  // The processor of the next run.
  processor_info processor() const {
    if (api_->size <= offsetof(tvmflow_api, processor)) return {kDLCPU, "", "", "", ""};
    tvmflow_processor found;
    check(api_->processor(instance_.get(), &found));
    const bool is_gpu = std::strcmp(found.kind, "gpu") == 0;
    const tvmflow_api *used = gpu_.api() ? gpu_.api() : api_;
    const device_type device = !is_gpu ? kDLCPU : used->gpu && std::strcmp(used->gpu, "vulkan") == 0 ? kDLVulkan : kDLOpenCL;
    const std::string missing = gpu_.missing().empty() ? "" : ": " + gpu_.missing();
    return {device, found.reason + missing, found.device, found.driver, found.version};
  }

  const tvmflow_api &api() const { return *api_; }

  tvmflow_tensor input(uint32_t i = 0) const { return info(api_->input, i); }
  tvmflow_tensor output(uint32_t i = 0) const { return info(api_->output, i); }

  // Run on the caller's memory: a pointer for each input and output.
  void run(const std::vector<const void *> &inputs, const std::vector<void *> &outputs) {
    if (inputs.size() != api_->inputs || outputs.size() != api_->outputs)
      throw error(TVMFLOW_BAD_ARGUMENT, "as many pointers as the network has inputs and outputs are needed");
    check(api_->run(instance_.get(), inputs.data(), outputs.data()));
  }

  // Run a network of one input and one output of elements T; returns the output.
  template <typename T>
  std::vector<T> run(const void *only_input) {
    if (output().dtype != element<T>::dtype) throw error(TVMFLOW_BAD_ARGUMENT, "the output does not consist of such elements");
    std::vector<T> found(output().size / sizeof(T));
    run({only_input}, {found.data()});
    return found;
  }

  // The number of threads of the next run, chosen for the lowest latency; 0 if the library's version does not report it.
  uint32_t threads() const { return api_->size > offsetof(tvmflow_api, threads_of) ? api_->threads_of(instance_.get()) : 0; }

  // The number of states, inputs that are carried from run to run where their pointer is null.
  uint32_t states() const { return api_->size > offsetof(tvmflow_api, states) ? api_->states : 0; }

  // Set all carried states to what they are at first, for the beginning of another stream.
  void reset_states() {
    if (states()) check(api_->state_reset(instance_.get()));
  }

  // The number of dynamic sizes; 0 if all shapes are fixed.
  uint32_t sizes() const { return api_->size > offsetof(tvmflow_api, sizes) ? api_->sizes : 0; }

  tvmflow_size size(uint32_t i = 0) const {
    tvmflow_size found;
    if (i >= sizes()) throw error(TVMFLOW_BAD_ARGUMENT, "no such size");
    check(api_->size_of(i, &found));
    return found;
  }

  // The shape of an input or output in a run with these sizes, one number for each of `sizes`.
  std::vector<int64_t> input_shape(uint32_t i, const std::vector<int64_t> &sizes) const { return shape(false, i, sizes); }
  std::vector<int64_t> output_shape(uint32_t i, const std::vector<int64_t> &sizes) const { return shape(true, i, sizes); }

  // Run on inputs and outputs with these sizes, which may be smaller than the largest.
  void run_sized(const std::vector<int64_t> &sizes, const std::vector<const void *> &inputs, const std::vector<void *> &outputs) {
    if (sizes.size() != this->sizes() || sizes.empty() || inputs.size() != api_->inputs || outputs.size() != api_->outputs)
      throw error(TVMFLOW_BAD_ARGUMENT, "as many sizes, and pointers, as the network has sizes, inputs and outputs are needed");
    check(api_->run_sized(instance_.get(), sizes.data(), inputs.data(), outputs.data()));
  }

  // Names and indices of the k largest of an output of float scores, the largest first.
  std::vector<std::pair<uint32_t, std::string>> top(const std::vector<float> &scores, uint32_t k) const {
    std::vector<uint32_t> indices(k);
    check(api_->top_k(scores.data(), static_cast<uint32_t>(scores.size()), k, indices.data()));
    std::vector<std::pair<uint32_t, std::string>> found;
    for (uint32_t at : indices) found.emplace_back(at, label(at));
    return found;
  }

  // The number of images of a run; 0 if the network takes none.
  uint32_t images() const { return api_->size > offsetof(tvmflow_api, images) ? api_->images : 0; }

  // Run on images, one for each sample of the batch, preprocessed as in training.
  void run_images(const std::vector<tvmflow_image> &images, const std::vector<void *> &outputs) {
    if (!this->images() || images.size() != this->images() || outputs.size() != api_->outputs)
      throw error(TVMFLOW_BAD_ARGUMENT, "as many images and outputs as the network has are needed");
    check(api_->run_image(instance_.get(), images.data(), outputs.data()));
  }

  // The k likeliest classes of an image, the likeliest first.
  std::vector<guess> classify(const tvmflow_image &image, uint32_t k = 5) {
    if (images() != 1) throw error(TVMFLOW_BAD_ARGUMENT, "the network takes no single image");
    std::vector<uint32_t> indices(k);
    std::vector<float> probabilities(k);
    check(api_->classify(instance_.get(), &image, k, indices.data(), probabilities.data()));
    std::vector<guess> found;
    for (uint32_t i = 0; i < k; ++i) found.push_back({indices[i], probabilities[i], label(indices[i])});
    return found;
  }

 private:
  void check(tvmflow_status status) const {
    if (status != TVMFLOW_OK) throw error(status, *api_->last_error() ? api_->last_error() : "bad argument");
  }

  std::string label(uint32_t at) const { return at < api_->label_count ? api_->labels[at] : ""; }

  tvmflow_tensor info(tvmflow_status (*ask)(uint32_t, tvmflow_tensor *), uint32_t i) const {
    tvmflow_tensor found;
    check(ask(i, &found));
    return found;
  }

  std::vector<int64_t> shape(bool is_output, uint32_t i, const std::vector<int64_t> &sizes) const {
    if (sizes.size() != this->sizes() || sizes.empty()) throw error(TVMFLOW_BAD_ARGUMENT, "as many sizes as the network has are needed");
    std::vector<int64_t> found(static_cast<size_t>((is_output ? output(i) : input(i)).ndim));
    check(api_->shape_of(is_output, i, sizes.data(), found.data()));
    return found;
  }

  const tvmflow_api *api_;
  gpu_library gpu_;  // outlives the instance
  std::unique_ptr<tvmflow_instance, void (*)(tvmflow_instance *)> instance_;
};

}  // namespace tvmflow

#endif
