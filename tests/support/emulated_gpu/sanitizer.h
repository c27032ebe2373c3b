// What AddressSanitizer is told where the build has it, and nothing where not: memory that nobody
// may touch although it is mapped, and stacks that are left for one another.
#pragma once

#include <cstddef>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace shoal::emulated_gpu {

// For functions that nothing is to look at: they read guards, or would take most of the time.
#ifdef __SANITIZE_ADDRESS__
#define SHOAL_MAY_TOUCH_ANYTHING __attribute__((no_sanitize("address,undefined")))
inline constexpr bool kAddressSanitizer = true;
#else
#define SHOAL_MAY_TOUCH_ANYTHING
inline constexpr bool kAddressSanitizer = false;
#endif

// Who touches these bytes ends the process with a report, in this process only. What is allowed
// begins at a multiple of 8, as AddressSanitizer keeps account of so many bytes at once.
inline void forbid([[maybe_unused]] const void* begin, [[maybe_unused]] std::size_t bytes) {
#ifdef __SANITIZE_ADDRESS__
  __asan_poison_memory_region(begin, bytes);
#endif
}
inline void allow([[maybe_unused]] const void* begin, [[maybe_unused]] std::size_t bytes) {
#ifdef __SANITIZE_ADDRESS__
  __asan_unpoison_memory_region(begin, bytes);
#endif
}

// `told` is called after a report, with the address that was touched.
inline void on_report([[maybe_unused]] void (*told)(const void* address)) {
#ifdef __SANITIZE_ADDRESS__
  static void (*kept)(const void*);
  kept = told;
  __asan_set_error_report_callback([](const char*) { kept(__asan_get_report_address()); });
#endif
}

// A stack, and what AddressSanitizer keeps of it while it is left.
struct StackOf {
  const void* bottom = nullptr;
  std::size_t bytes = 0;
  void* kept = nullptr;
};
// Before `from` is left for `to`; `for_good`: nobody comes back to it.
inline void leave_stack([[maybe_unused]] StackOf& from, [[maybe_unused]] const StackOf& to,
                        [[maybe_unused]] bool for_good = false) {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(for_good ? nullptr : &from.kept, to.bottom, to.bytes);
#endif
}
// On `to`, first of all; `from` learns where it lies.
inline void enter_stack([[maybe_unused]] StackOf& from, [[maybe_unused]] StackOf& to) {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(to.kept, &from.bottom, &from.bytes);
  to.kept = nullptr;
#endif
}

}  // namespace shoal::emulated_gpu
