// Tells AddressSanitizer which mapped memory must not be accessed, and when a thread switches
// stacks. In other builds these functions do nothing.
#pragma once

#include <cstddef>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace shoal::emulated_gpu {

// For functions that sanitizers must not check: they read guards, or checking would take most of
// the time.
#ifdef __SANITIZE_ADDRESS__
#define SHOAL_MAY_TOUCH_ANYTHING __attribute__((no_sanitize("address,undefined")))
inline constexpr bool kAddressSanitizer = true;
#else
#define SHOAL_MAY_TOUCH_ANYTHING
inline constexpr bool kAddressSanitizer = false;
#endif

// Makes any access to these bytes by this process end it with a report. Accessible ranges begin at
// a multiple of 8, because AddressSanitizer tracks memory in units of 8 bytes.
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

// Sets a callback that gets the accessed address after a report.
inline void on_report([[maybe_unused]] void (*told)(const void* address)) {
#ifdef __SANITIZE_ADDRESS__
  static void (*kept)(const void*);
  kept = told;
  __asan_set_error_report_callback([](const char*) { kept(__asan_get_report_address()); });
#endif
}

// A stack, and AddressSanitizer's data about it while another stack is in use.
struct StackOf {
  const void* bottom = nullptr;
  std::size_t bytes = 0;
  void* kept = nullptr;
};
// Call before switching from `from` to `to`. `for_good`: `from` is never resumed.
inline void leave_stack([[maybe_unused]] StackOf& from, [[maybe_unused]] const StackOf& to,
                        [[maybe_unused]] bool for_good = false) {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(for_good ? nullptr : &from.kept, to.bottom, to.bytes);
#endif
}
// Call first after switching to `to`. It sets the bounds of `from`.
inline void enter_stack([[maybe_unused]] StackOf& from, [[maybe_unused]] StackOf& to) {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(to.kept, &from.bottom, &from.bytes);
  to.kept = nullptr;
#endif
}

}  // namespace shoal::emulated_gpu
