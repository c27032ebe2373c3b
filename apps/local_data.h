// The files of `shoal submit --upload DIR`, as channels of the job.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shoal::app {

struct LocalFile {
  std::string path;  // on this machine
  std::string name;  // in the channel: "a/b.csv"
  std::int64_t bytes = 0;
};

struct LocalChannel {
  std::string name;  // "train"
  std::string key;   // where it goes in the bucket: "shoal-data/reviews-0123456789ab/train/"
  std::string path;  // its folder on this machine
  std::vector<LocalFile> files = {};

  std::int64_t bytes() const;
};

struct LocalData {
  std::vector<LocalChannel> channels;
  std::vector<std::string> notices;  // what is left out
};

// Each folder in the directory is a channel with its name; files beside them are the channel train.
// Names that begin with a dot are left out. The keys contain a digest of all names and contents:
// the same data goes to the same place, so an upload can be continued, and other data never
// replaces what a job may be reading. Reads the files (of large ones, samples). Throws not_found
// without the directory, and invalid_argument without files, with links to directories, pipes or
// devices.
LocalData find_local_data(const std::string& directory);

}  // namespace shoal::app
