// The C library's own function behind one that the simulation defines. Internal to its calls.
#pragma once

#include <dlfcn.h>

namespace shoal::simulation {

// `version` chooses among functions of one name; null: the newest.
template <typename Function>
Function real_call(const char* name, const char* version = nullptr) {
  // dlvsym itself is one of the simulation's calls.
  static const auto by_version =
      reinterpret_cast<void* (*)(void*, const char*, const char*)>(::dlsym(RTLD_NEXT, "dlvsym"));
  void* found = version != nullptr ? by_version(RTLD_NEXT, name, version) : nullptr;
  if (found == nullptr) found = ::dlsym(RTLD_NEXT, name);
  return reinterpret_cast<Function>(found);
}

}  // namespace shoal::simulation

// Defines `next`, the C library's function of this name and type.
#define SHOAL_REAL_CALL(name) \
  static const auto next = ::shoal::simulation::real_call<decltype(&::name)>(#name)
