// Makes the system calls on one path fail as on a broken disk or network. Root gets the error too.
#pragma once

#include <string>

namespace shoal::test {

// While it lives, open(), opendir(), stat(), remove() and rename() of exactly this spelling of the
// path fail with `error`. That holds in the whole process, including calls from the standard
// library. openat() and unlinkat() fail too if the open directory's path and the name together make
// this path, because remove_all() walks a tree that way. The test links shoal_test_failing_path.
class FailingPath {
 public:
  FailingPath(std::string path, int error);
  ~FailingPath();
  FailingPath(const FailingPath&) = delete;
  FailingPath& operator=(const FailingPath&) = delete;
  int calls() const;  // failed calls so far

 private:
  std::string path_;
};

}  // namespace shoal::test
