// Replaces CUDA's driver where there is none. It accepts code and runs nothing. cuDNN finishes a
// plan for a described device only after a driver has loaded the plan's kernels, and it looks for
// these functions.
#include <atomic>

extern "C" {

// Returns how often code was loaded.
__attribute__((visibility("default"))) int shoal_described_gpus_loads();

static std::atomic<int> loads{0};
int shoal_described_gpus_loads() { return loads; }

#define SHOAL_DRIVER __attribute__((visibility("default"))) int
static int something;  // an opaque library and kernel

SHOAL_DRIVER cuDriverGetVersion(int* version) {
  *version = 13000;
  return 0;
}
SHOAL_DRIVER cuLibraryLoadData(void** library) {
  ++loads;
  *library = &something;
  return 0;
}
SHOAL_DRIVER cuLibraryUnload() { return 0; }
SHOAL_DRIVER cuLibraryGetKernel(void** kernel) {
  *kernel = &something;
  return 0;
}
SHOAL_DRIVER cuKernelGetAttribute(int* value) {
  *value = 0;
  return 0;
}
SHOAL_DRIVER cuKernelSetAttribute() { return 0; }

// Any other call fails with error 34, which CUDA returns where no driver is installed.
#define SHOAL_REFUSED(name) \
  SHOAL_DRIVER name() { return 34; }
SHOAL_REFUSED(cuCtxGetCurrent)
SHOAL_REFUSED(cuCtxGetDevice)
SHOAL_REFUSED(cuCtxGetLimit)
SHOAL_REFUSED(cuCtxPopCurrent)
SHOAL_REFUSED(cuCtxPushCurrent)
SHOAL_REFUSED(cuDeviceGet)
SHOAL_REFUSED(cuDeviceGetAttribute)
SHOAL_REFUSED(cuDeviceGetCount)
SHOAL_REFUSED(cuDevicePrimaryCtxRelease)
SHOAL_REFUSED(cuDevicePrimaryCtxReset)
SHOAL_REFUSED(cuDevicePrimaryCtxRetain)
SHOAL_REFUSED(cuFuncGetAttribute)
SHOAL_REFUSED(cuFuncSetAttribute)
SHOAL_REFUSED(cuGetErrorName)
SHOAL_REFUSED(cuGetErrorString)
SHOAL_REFUSED(cuInit)
SHOAL_REFUSED(cuLaunchCooperativeKernel)
SHOAL_REFUSED(cuLaunchKernel)
SHOAL_REFUSED(cuLaunchKernelEx)
SHOAL_REFUSED(cuLibraryLoadFromFile)
SHOAL_REFUSED(cuLinkAddData)
SHOAL_REFUSED(cuLinkAddData_v2)
SHOAL_REFUSED(cuLinkAddFile_v2)
SHOAL_REFUSED(cuLinkComplete)
SHOAL_REFUSED(cuLinkCreate)
SHOAL_REFUSED(cuLinkCreate_v2)
SHOAL_REFUSED(cuLinkDestroy)
SHOAL_REFUSED(cuMemcpyDtoH_v2)
SHOAL_REFUSED(cuModuleGetFunction)
SHOAL_REFUSED(cuModuleGetGlobal_v2)
SHOAL_REFUSED(cuModuleLoadData)
SHOAL_REFUSED(cuModuleLoadDataEx)
SHOAL_REFUSED(cuModuleLoadFatBinary)
SHOAL_REFUSED(cuModuleUnload)
SHOAL_REFUSED(cuOccupancyMaxActiveBlocksPerMultiprocessor)
SHOAL_REFUSED(cuOccupancyMaxPotentialClusterSize)
SHOAL_REFUSED(cuStreamGetCtx)
SHOAL_REFUSED(cuStreamSynchronize)
SHOAL_REFUSED(cuTensorMapEncodeTiled)
}
