// What lets one binary, built with CUDA, also start on a machine without a driver, and end in order on one whose GPU failed.
//
// Linked into every executable of this package (`build/cuda.rs`) in place of the driver's own `libcuda.so.1`, which would
// be a load-time dependency:
//  1. the driver functions that openvm-cuda-common calls directly are found at their first use; without a driver
//     they report CUDA_ERROR_NO_DEVICE;
//  2. openvm-cuda-common 2.0.1 initialises its memory pool in a constructor, before `main`, and aborts the process
//     when the runtime reports no device. The linker's `--wrap` routes the three runtime calls of that constructor
//     through here: where there is no driver or device, they report success, so that the pool comes up empty and
//     everything that needs no GPU works. Asking for a GPU then fails in `gpu::device`, with a message;
//  3. openvm-cuda-common's destructors panic when freeing fails, which ends the process at once if a panic is what they run
//     for. After a kernel went astray the context is lost and every call fails, so that the first error, with all that it
//     says, would never be seen. The three calls that freeing is made of are wrapped too: once one of them has seen that the
//     context is lost, they report success. All other calls go on failing, waiting for an event first of all, so that nothing
//     passes for a result.
#include <dlfcn.h>
#include <stddef.h>

// Values of `CUresult` and `cudaError_t` (cuda.h, driver_types.h of CUDA 13.0).
enum { DRIVER_NO_DEVICE = 100 };
enum { RUNTIME_INSUFFICIENT_DRIVER = 35, RUNTIME_STUB_LIBRARY = 34, RUNTIME_NO_DEVICE = 100 };

static void *driver_symbol(const char *name) {
    static void *driver = NULL;
    if (driver == NULL) {
        driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    }
    return driver == NULL ? NULL : dlsym(driver, name);
}

// Forwards one driver function. The arguments are spelt with the types of cuda.h's ABI on 64-bit Linux.
#define FORWARD(name, exported, parameters, arguments)                                                                 \
    int name parameters {                                                                                              \
        static int(*function) parameters = NULL;                                                                       \
        if (function == NULL) {                                                                                        \
            *(void **)&function = driver_symbol(exported);                                                             \
        }                                                                                                              \
        return function == NULL ? DRIVER_NO_DEVICE : function arguments;                                               \
    }

typedef unsigned long long u64;

FORWARD(cuDeviceGet, "cuDeviceGet", (int *device, int ordinal), (device, ordinal))
FORWARD(cuDeviceGetAttribute, "cuDeviceGetAttribute", (int *value, int attribute, int device),
        (value, attribute, device))
FORWARD(cuMemGetAllocationGranularity, "cuMemGetAllocationGranularity",
        (size_t *granularity, const void *properties, int option), (granularity, properties, option))
FORWARD(cuMemAddressReserve, "cuMemAddressReserve",
        (u64 *address, size_t size, size_t alignment, u64 hint, u64 flags), (address, size, alignment, hint, flags))
FORWARD(cuMemAddressFree, "cuMemAddressFree", (u64 address, size_t size), (address, size))
FORWARD(cuMemCreate, "cuMemCreate", (u64 *handle, size_t size, const void *properties, u64 flags),
        (handle, size, properties, flags))
FORWARD(cuMemMap, "cuMemMap", (u64 address, size_t size, size_t offset, u64 handle, u64 flags),
        (address, size, offset, handle, flags))
FORWARD(cuMemSetAccess, "cuMemSetAccess", (u64 address, size_t size, const void *access, size_t count),
        (address, size, access, count))
FORWARD(cuMemUnmap, "cuMemUnmap", (u64 address, size_t size), (address, size))
FORWARD(cuMemRelease, "cuMemRelease", (u64 handle), (handle))

static int without_device(int status) {
    return status == RUNTIME_INSUFFICIENT_DRIVER || status == RUNTIME_STUB_LIBRARY || status == RUNTIME_NO_DEVICE;
}

int __real_cudaGetDevice(int *device);
int __wrap_cudaGetDevice(int *device) {
    int status = __real_cudaGetDevice(device);
    if (without_device(status)) {
        *device = 0;
        return 0;
    }
    return status;
}

int __real_cudaSetDevice(int device);
int __wrap_cudaSetDevice(int device) {
    int status = __real_cudaSetDevice(device);
    return without_device(status) ? 0 : status;
}

int __real_cudaFree(void *pointer);
int __wrap_cudaFree(void *pointer) {
    int status = __real_cudaFree(pointer);
    return without_device(status) ? 0 : status;
}

// Errors of the runtime after which a process has to be started anew; `src/pipeline/fault.rs` has the same list.
static int is_context_lost(int status) {
    switch (status) {
    case 214: // cudaErrorECCUncorrectable
    case 220: // cudaErrorNvlinkUncorrectable
    case 226: // cudaErrorContained
    case 700: // cudaErrorIllegalAddress
    case 702: // cudaErrorLaunchTimeout
    case 709: // cudaErrorContextIsDestroyed
    case 710: // cudaErrorAssert
    case 714: // cudaErrorHardwareStackError
    case 715: // cudaErrorIllegalInstruction
    case 716: // cudaErrorMisalignedAddress
    case 717: // cudaErrorInvalidAddressSpace
    case 718: // cudaErrorInvalidPc
    case 719: // cudaErrorLaunchFailure
    case 721: // cudaErrorTensorMemoryLeak
        return 1;
    default:
        return 0;
    }
}

// The error that took the context, once it is known. Never cleared, and of no consequence but for these calls.
static volatile int context_lost = 0;

static int when_freeing(int status) {
    if (!is_context_lost(status)) {
        return status;
    }
    context_lost = status;
    return 0;
}

typedef struct CUstream_st *stream_t;
typedef struct CUevent_st *event_t;

int __real_cudaFreeAsync(void *pointer, stream_t stream);
int __wrap_cudaFreeAsync(void *pointer, stream_t stream) {
    return context_lost ? 0 : when_freeing(__real_cudaFreeAsync(pointer, stream));
}

int __real_cudaEventCreate(event_t *event);
int __wrap_cudaEventCreate(event_t *event) {
    *event = NULL;
    return context_lost ? 0 : when_freeing(__real_cudaEventCreate(event));
}

int __real_cudaEventRecord(event_t event, stream_t stream);
int __wrap_cudaEventRecord(event_t event, stream_t stream) {
    return context_lost ? 0 : when_freeing(__real_cudaEventRecord(event, stream));
}

// An event that was never recorded counts as complete.
int __real_cudaEventSynchronize(event_t event);
int __wrap_cudaEventSynchronize(event_t event) {
    return context_lost ? context_lost : __real_cudaEventSynchronize(event);
}
