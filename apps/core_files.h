// Core files hold all memory of a process that crashed, and its environment: keys of AWS too.
#pragma once

namespace shoal::app {

// From now on the kernel makes no core of this process, nor of those that it starts: neither a file
// nor one piped to a collector. Debuggers can attach still, and ranks read each other's memory,
// which PR_SET_DUMPABLE would end. Nothing turns it on again.
void forbid_core_files();

// The same where the environment holds a secret of AWS's: key, session token, container's token.
void forbid_core_files_of_secrets();

}  // namespace shoal::app
