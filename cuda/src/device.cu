// The name of a GPU. A function of ours, since `cudaDeviceProp` changes its layout between CUDA versions.
#include <cuda_runtime.h>

#include <cstdio>

extern "C" int _device_name(int ordinal, char *name, size_t capacity) {
    cudaDeviceProp properties;
    const cudaError_t status = cudaGetDeviceProperties(&properties, ordinal);
    if (status == cudaSuccess) snprintf(name, capacity, "%s", properties.name);
    return status;
}
