// A benchmark server as a child process (protocol: bench/peers/README.md).
#pragma once

#include <cstdio>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>
#include <sys/types.h>

namespace shoal::bench {

class ServerProcess {
 public:
  // Starts the program, which shares this process's standard error. `name` is for rows and
  // messages.
  ServerProcess(std::string name, const std::vector<std::string>& command);
  ~ServerProcess();  // closes the server's input; kills the server if it runs on for 20 s
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  const std::string& name() const { return name_; }
  // Returns the next JSON line. Blocks. Throws Error with the exit status if the server has ended.
  nlohmann::ordered_json answer();
  nlohmann::ordered_json round();

 private:
  std::string name_;
  pid_t pid_ = -1;
  std::FILE* input_ = nullptr;
  std::FILE* output_ = nullptr;
};

}  // namespace shoal::bench
