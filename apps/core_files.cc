#include "core_files.h"

#include <cstdlib>
#include <initializer_list>

#include <sys/resource.h>

namespace shoal::app {

void forbid_core_files() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_CORE, &limit) != 0) return;
  // 1 byte, not 0: a limit below a page prevents files, and 1 is the only limit that the kernel
  // honours if core_pattern is a pipe (fs/coredump.c). A hard limit of 0 stays 0.
  limit.rlim_cur = limit.rlim_max < 1 ? limit.rlim_max : 1;
  ::setrlimit(RLIMIT_CORE, &limit);
}

void forbid_core_files_of_secrets() {
  for (const char* name :
       {"AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_CONTAINER_AUTHORIZATION_TOKEN"})
    if (const char* value = std::getenv(name); value != nullptr && *value != '\0')
      return forbid_core_files();
}

}  // namespace shoal::app
