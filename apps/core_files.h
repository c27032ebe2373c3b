// Core files contain a crashed process's memory and environment, including AWS keys.
#pragma once

namespace shoal::app {

// From now on, the kernel writes no core of this process or its children, neither to a file nor to
// a pipe. Debuggers can still attach and ranks can read each other's memory, which PR_SET_DUMPABLE
// would prevent. This cannot be undone.
void forbid_core_files();

// Calls forbid_core_files() if the environment contains an AWS secret: key, session token or
// container token.
void forbid_core_files_of_secrets();

}  // namespace shoal::app
