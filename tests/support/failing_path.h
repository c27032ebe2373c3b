// A path whose system calls fail as those of a broken disk or network do. Root too gets the error.
#pragma once

#include <string>

namespace shoal::test {

// While it lives, open(), opendir(), stat(), remove() and rename() of exactly this path, written
// so, fail with `error` in the whole process, also where the standard library calls them. So do
// openat() and unlinkat() of a name in an open directory, where the directory's path and the name
// make this path: remove_all() goes through a tree that way. The test links
// shoal_test_failing_path.
class FailingPath {
 public:
  FailingPath(std::string path, int error);
  ~FailingPath();
  FailingPath(const FailingPath&) = delete;
  FailingPath& operator=(const FailingPath&) = delete;
  int calls() const;  // that failed

 private:
  std::string path_;
};

}  // namespace shoal::test
