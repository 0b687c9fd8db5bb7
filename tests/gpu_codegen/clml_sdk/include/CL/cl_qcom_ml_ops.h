/* A stand-in for the header of Qualcomm's SDK, for tests: the names that Apache TVM's sources use, with numbers and structures of our own. Nothing
 * compiled with it runs on an Adreno. CLML_STAND_IN_VERSION: the newest version of the interface. */
#ifndef CLML_STAND_IN_H
#define CLML_STAND_IN_H
#include <CL/cl.h>

#ifndef CLML_STAND_IN_VERSION
#define CLML_STAND_IN_VERSION 5
#endif
#define CL_QCOM_ML_OPS_H_MAJOR_VERSION CLML_STAND_IN_VERSION
#define CL_QCOM_ML_OPS_H_MINOR_VERSION 0

typedef struct stand_in_tensor *cl_ml_tensor_qcom;
typedef struct stand_in_operator *cl_ml_op_qcom;
typedef struct stand_in_set *cl_ml_tensor_mem_desc_set_qcom;
typedef struct stand_in_cache *cl_ml_tuningcache_qcom;
typedef struct _cl_recording_qcom *cl_recording_qcom;
typedef intptr_t cl_ml_tensor_properties_qcom;
typedef intptr_t cl_ml_op_properties_qcom;

typedef enum { CL_TENSOR_LAYOUT_OPTIMAL_QCOM = 701, CL_TENSOR_LAYOUT_NCHW_QCOM, CL_TENSOR_LAYOUT_NHWC_QCOM } cl_ml_tensor_layout_qcom;
typedef enum { CL_TENSOR_UNUSED_QCOM = 711, CL_TENSOR_DIMENSIONS_4D_QCOM } cl_ml_tensor_num_dimensions_qcom;
typedef enum { CL_ARITHMETIC_MODE_FP32_QCOM = 721, CL_ARITHMETIC_MODE_FP16_QCOM, CL_ARITHMETIC_MODE_FP16_ACC32_QCOM } cl_arithmetic_mode_qcom;
typedef enum { CL_CONVOLUTION_MODE_CONVOLUTION_QCOM = 731, CL_CONVOLUTION_MODE_DEPTHWISE_QCOM } cl_convolution_mode_qcom;
typedef enum { CL_ACTIVATION_RELU = 741, CL_ACTIVATION_RELU6 } cl_activation_function_qcom;
typedef enum { CL_PROPAGATE_NAN_QCOM = 751 } cl_nan_propagation_qcom;
typedef enum { CL_POOLING_MODE_MAX_QCOM = 761, CL_POOLING_MODE_AVERAGE_EXCLUDE_PADDING_QCOM } cl_pooling_mode_qcom;
typedef enum { CL_TENSOR_OP_ADD_QCOM = 771 } cl_binary_op_qcom;
typedef enum { CL_SOFTMAX_ALGORITHM_ACCURATE_QCOM = 781 } cl_softmax_algorithm_qcom;
typedef enum { CL_SOFTMAX_MODE_SPATIAL_QCOM = 791 } cl_softmax_mode_qcom;
typedef enum { CL_FC_WEIGHT_TRANSFORM_NONE_QCOM = 801, CL_FC_WEIGHT_TRANSFORM_TRANSPOSE_QCOM } cl_fc_weight_transform_qcom;
#if CL_QCOM_ML_OPS_H_MAJOR_VERSION >= 4
typedef enum { CL_TENSOR_USAGE_INVALID_QCOM = 811, CL_TENSOR_USAGE_UNUSED_QCOM, CL_TENSOR_USAGE_PARAMETER_QCOM, CL_TENSOR_USAGE_CNN_QCOM } cl_ml_tensor_usage_qcom;
#endif

typedef struct {
  cl_channel_type data_type;
  cl_ml_tensor_layout_qcom layout;
  cl_uint n, c, h, w, d;
  cl_ml_tensor_num_dimensions_qcom num_dimensions;
  cl_uint pitch[8];
} cl_ml_tensor_desc_qcom;

typedef struct {
  cl_ml_tensor_qcom tensor;
  cl_mem memory;
} cl_ml_tensor_memory_desc_qcom;

typedef struct {
  union {
    cl_float f;
    cl_uint u;
  } value;
  cl_channel_type type;
} stand_in_scalar;

typedef struct {
  cl_convolution_mode_qcom mode;
  cl_uint groups, dimensions, before[2], behind[2], strides[2], dilation[2], flags;
  cl_arithmetic_mode_qcom arithmetic;
} cl_ml_op_convolution_desc_qcom;

typedef struct {
  cl_activation_function_qcom function;
  cl_nan_propagation_qcom nan;
  cl_arithmetic_mode_qcom arithmetic;
} cl_ml_op_activation_desc_qcom;

typedef struct {
  cl_pooling_mode_qcom mode;
  cl_uint dimensions, before[2], behind[2], strides[2], window[2];
  cl_nan_propagation_qcom nan;
  cl_arithmetic_mode_qcom arithmetic;
} cl_ml_op_pooling_desc_qcom;

typedef struct {
  cl_binary_op_qcom op;
  stand_in_scalar alpha, beta, gamma;
  cl_arithmetic_mode_qcom arithmetic;
} cl_ml_op_binary_desc_qcom;

typedef struct {
  cl_uint axis;
  cl_fc_weight_transform_qcom transform;
  cl_arithmetic_mode_qcom arithmetic;
} cl_ml_op_fully_connected_desc_qcom;

typedef struct {
  cl_softmax_algorithm_qcom algorithm;
  cl_softmax_mode_qcom mode;
  cl_arithmetic_mode_qcom arithmetic;
} cl_ml_op_softmax_desc_qcom;

#define STAND_IN_WAITS cl_uint, const cl_event *, cl_event *
#define STAND_IN_TENSORS_OF_VERSION_1 \
  cl_int (*clCreateMLTensorQCOM)(cl_context, const cl_ml_tensor_properties_qcom *, const cl_ml_tensor_desc_qcom *, cl_ml_tensor_qcom *);
#define STAND_IN_TENSORS_OF_VERSION_4                                                                                                                  \
  cl_int (*clCreateMLTensorWithUsageQCOM)(cl_context, const cl_ml_tensor_properties_qcom *, const cl_ml_tensor_desc_qcom *, cl_ml_tensor_usage_qcom,  \
                                          cl_ml_tensor_qcom *);
#define STAND_IN_FUNCTIONS                                                                                                                             \
  cl_int (*clReleaseMLTensorQCOM)(cl_ml_tensor_qcom);                                                                                                  \
  cl_int (*clGetMLTensorMemorySizeQCOM)(cl_context, cl_ml_tensor_qcom, cl_uint *);                                                                     \
  cl_int (*clEnqueueWriteMLTensorDataQCOM)(cl_command_queue, const void *, cl_ml_tensor_layout_qcom, cl_ml_tensor_qcom, cl_mem, STAND_IN_WAITS);       \
  cl_int (*clEnqueueCopyMLTensorDataQCOM)(cl_command_queue, cl_ml_tensor_qcom, cl_mem, cl_ml_tensor_qcom, cl_mem, STAND_IN_WAITS);                     \
  cl_int (*clCreateMLTensorMemoryDescriptorSetQCOM)(cl_ml_tensor_mem_desc_set_qcom *);                                                                 \
  cl_int (*clUpdateMLTensorMemoryDescriptorSetQCOM)(cl_ml_tensor_mem_desc_set_qcom, cl_uint, const cl_ml_tensor_memory_desc_qcom *);                   \
  cl_int (*clReleaseMLTensorMemoryDescriptorSetQCOM)(cl_ml_tensor_mem_desc_set_qcom);                                                                  \
  cl_int (*clEnqueueMLOpQCOM)(cl_command_queue, cl_ml_op_qcom, cl_ml_tensor_mem_desc_set_qcom, STAND_IN_WAITS);                                        \
  cl_int (*clReleaseMLOpQCOM)(cl_ml_op_qcom);                                                                                                          \
  cl_int (*clCreateMLTuningCacheQCOM)(cl_ml_tuningcache_qcom *);                                                                                       \
  cl_int (*clLoadMLTuningCacheQCOM)(cl_ml_tuningcache_qcom, size_t, const unsigned char *);                                                            \
  cl_int (*clSaveMLTuningCacheQCOM)(cl_ml_tuningcache_qcom, size_t, unsigned char *, size_t *);                                                        \
  cl_int (*clReleaseMLTuningCacheQCOM)(cl_ml_tuningcache_qcom);                                                                                        \
  cl_int (*clTuneMLOpQCOM)(cl_command_queue, cl_ml_op_qcom, cl_ml_tensor_mem_desc_set_qcom, cl_ml_tuningcache_qcom, cl_event *);                       \
  cl_int (*clCreateMLOpConvolutionForwardQCOM)(cl_context, const cl_ml_op_properties_qcom *, const cl_ml_op_convolution_desc_qcom *, cl_ml_tensor_qcom, \
                                               cl_ml_tensor_qcom, cl_ml_tensor_qcom, cl_ml_tensor_qcom, cl_ml_op_qcom *, cl_ml_tuningcache_qcom);      \
  cl_int (*clCreateMLOpFusedConvolutionActivationForwardQCOM)(cl_context, const cl_ml_op_properties_qcom *, const cl_ml_op_convolution_desc_qcom *,    \
                                                              const cl_ml_op_activation_desc_qcom *, cl_ml_tensor_qcom, cl_ml_tensor_qcom,             \
                                                              cl_ml_tensor_qcom, cl_ml_tensor_qcom, cl_ml_tensor_qcom, cl_ml_op_qcom *,                \
                                                              cl_ml_tuningcache_qcom);                                                                 \
  cl_int (*clCreateMLOpActivationForwardQCOM)(cl_context, const cl_ml_op_properties_qcom *, const cl_ml_op_activation_desc_qcom *, cl_ml_tensor_qcom,  \
                                              cl_ml_tensor_qcom, cl_ml_tensor_qcom, cl_ml_op_qcom *, cl_ml_tuningcache_qcom);                          \
  cl_int (*clCreateMLOpPoolingForwardQCOM)(cl_context, const cl_ml_op_properties_qcom *, const cl_ml_op_pooling_desc_qcom *, cl_ml_tensor_qcom,        \
                                           cl_ml_tensor_qcom, cl_ml_tensor_qcom, cl_ml_op_qcom *, cl_ml_tuningcache_qcom);                             \
  cl_int (*clCreateMLOpBinaryQCOM)(cl_context, const cl_ml_op_properties_qcom *, const cl_ml_op_binary_desc_qcom *, cl_ml_tensor_qcom, cl_ml_tensor_qcom, \
                                   cl_ml_tensor_qcom, cl_ml_op_qcom *, cl_ml_tuningcache_qcom);                                                        \
  cl_int (*clCreateMLOpFullyConnectedQCOM)(cl_context, const cl_ml_op_properties_qcom *, const cl_ml_op_fully_connected_desc_qcom *, cl_ml_tensor_qcom, \
                                           cl_ml_tensor_qcom, cl_ml_tensor_qcom, cl_ml_tensor_qcom, cl_ml_op_qcom *, cl_ml_tuningcache_qcom);          \
  cl_int (*clCreateMLOpSoftmaxQCOM)(cl_context, const cl_ml_op_properties_qcom *, const cl_ml_op_softmax_desc_qcom *, cl_ml_tensor_qcom,               \
                                    cl_ml_tensor_qcom, cl_ml_op_qcom *, cl_ml_tuningcache_qcom);                                                       \
  cl_int (*clEnqueueRecordingMLOpQCOM)(cl_command_queue, cl_recording_qcom, size_t, const void *, size_t, const void *, size_t, const void *, size_t,  \
                                       const void *, size_t, const void *, size_t, const void *, size_t, const void *, cl_uint, const cl_event *,     \
                                       cl_event *);

/* Each version has its functions elsewhere in its table. */
typedef struct {
  STAND_IN_TENSORS_OF_VERSION_1
  STAND_IN_FUNCTIONS
} CLMLInterfaceV1QCOM;
#if CL_QCOM_ML_OPS_H_MAJOR_VERSION >= 2
typedef struct {
  void *first;
  STAND_IN_TENSORS_OF_VERSION_1
  STAND_IN_FUNCTIONS
} CLMLInterfaceV2QCOM;
#endif
#if CL_QCOM_ML_OPS_H_MAJOR_VERSION >= 3
typedef struct {
  void *first[2];
  STAND_IN_TENSORS_OF_VERSION_1
  STAND_IN_FUNCTIONS
} CLMLInterfaceV3QCOM;
#endif
#if CL_QCOM_ML_OPS_H_MAJOR_VERSION >= 4
typedef struct {
  void *first[3];
  STAND_IN_TENSORS_OF_VERSION_4
  STAND_IN_FUNCTIONS
} CLMLInterfaceV4QCOM;
#endif
#if CL_QCOM_ML_OPS_H_MAJOR_VERSION >= 5
typedef struct {
  void *first[4];
  STAND_IN_TENSORS_OF_VERSION_4
  STAND_IN_FUNCTIONS
} CLMLInterfaceV5QCOM;
#endif

extern cl_int clQueryMLInterfaceVersionsQCOM(cl_int *, cl_int *, cl_uint, cl_uint *);
extern cl_int clGetMLInterfaceQCOM(void **, cl_int, cl_int);
#endif
