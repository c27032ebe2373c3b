#include "shoal/collectives/transport/fabric/library.h"

#include <string>
#include <type_traits>

#include <dlfcn.h>
#include <fmt/format.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/kept_signals.h"

namespace shoal::collectives::fabric {
namespace {

std::string built_with() { return fmt::format("{}.{}", FI_MAJOR_VERSION, FI_MINOR_VERSION); }

[[noreturn]] void missing(const std::string& why) {
  throw Error(ErrorCode::unavailable, "libfabric cannot be loaded: " + why,
              "install libfabric " + built_with() +
                  " or newer (Debian: libfabric1; AWS: the EFA installer)");
}

// The loader looks where it would for a linked library, and then where the build found one.
void* open_library() {
  const KeptSignals kept;
  void* handle = ::dlopen("libfabric.so.1", RTLD_NOW | RTLD_LOCAL);
  if (handle != nullptr) return handle;
  const std::string why = ::dlerror();
  handle = ::dlopen(SHOAL_LIBFABRIC_DIRECTORY "/libfabric.so.1", RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) missing(why);
  return handle;
}

Library load() {
  void* handle = open_library();
  Library functions;
  // A symbol's version stands for the layout of structures (fi_info) in the headers.
  const auto find = [&](const char* name, const char* version, auto& function) {
    void* symbol = ::dlvsym(handle, name, version);
    if (symbol == nullptr) missing(fmt::format("it has no {} of {}", name, version));
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(symbol);
  };
  find("fi_version", SHOAL_FI_version, functions.version);
  find("fi_getinfo", SHOAL_FI_getinfo, functions.getinfo);
  find("fi_dupinfo", SHOAL_FI_dupinfo, functions.dupinfo);
  find("fi_freeinfo", SHOAL_FI_freeinfo, functions.freeinfo);
  find("fi_fabric", SHOAL_FI_fabric, functions.fabric);
  find("fi_strerror", SHOAL_FI_strerror, functions.strerror);
  return functions;
}

}  // namespace

const Library& library() {
  static const Library loaded = load();
  return loaded;
}

}  // namespace shoal::collectives::fabric
