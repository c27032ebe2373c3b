// Linked into programs under AddressSanitizer only: no library is ever unloaded. Open MPI and
// libfabric unload plugins that leave memory behind; once a plugin is gone the leak report cannot
// name it, and tools/lsan.supp, which goes by the library's name, would not match.
extern "C" __attribute__((visibility("default"))) int dlclose(void* /*handle*/) { return 0; }

// Nor does it match who called libfabric: these libraries keep no frame pointers, and the quick way
// to walk a stack ends in them.
extern "C" __attribute__((visibility("default"))) const char* __asan_default_options() {
  return "fast_unwind_on_malloc=0";
}
