// checkpoint-N/ directories: written beside, synced, marked, renamed last (decision 13).
//
//   <output_dir>/tmp-checkpoint-N.<rank>/   being written; ignored and later removed
//   <output_dir>/checkpoint-N/              renamed into place
//   <output_dir>/checkpoint-N/COMPLETE      JSON: every file with its bytes and SHA-256. Without
//                                           it, or where it does not fit, the rest does not count.
// A checkpoint is damaged where files are missing or do not fit. An error of the file system (EIO,
// EACCES, ESTALE, ...) says nothing about it: every function here throws io then.
//
// One rank has the transaction; others may write files of their own into its directory, seal them,
// and are done before it commits. Readers may be others. Calls block on the file system.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/runtime/base/error.h"
#include "shoal/train/checkpoint/sealed_file.h"

namespace shoal {

inline constexpr std::string_view kCompleteMarker = "COMPLETE";
// Of whole tensors, "exp_avg/NAME" and the like; in shards they stand beside the weights.
inline constexpr std::string_view kOptimizerStateFile = "optimizer.safetensors";

struct CheckpointInfo {
  std::int64_t step = 0;
  std::string path;
};

std::string checkpoint_path(const std::string& output_dir, std::int64_t step);
// Where rank `rank`'s transaction has it until it is complete.
std::string unfinished_checkpoint_path(const std::string& output_dir, std::int64_t step, int rank);

// Directories named checkpoint-<digits>, by rising step, complete or not. A directory that does
// not exist has none.
std::vector<CheckpointInfo> list_checkpoints(const std::string& output_dir);

// Of `readers` that look at one checkpoint together, this is the one of that index. Each reads
// whole files of about as many bytes as the others.
struct ChecksumShare {
  int index = 0, readers = 1;
  std::function<void()> progress = {};  // called after each MiB
};
// Why a checkpoint cannot be used; nothing when it is complete. `checksums`: read every byte, of
// the share's files.
std::optional<std::string> checkpoint_problem(const std::string& path, bool checksums,
                                              const ChecksumShare& share = {});

struct DamagedCheckpoint {
  std::string path, reason;
};
// There are checkpoints and none is whole: corrupt_data, with the reason of each.
Error none_is_whole(const std::string& output_dir, const std::vector<DamagedCheckpoint>& damaged,
                    std::string remedy);

// The complete one of the highest step. Each newer one that is not complete is told to `skipped`
// (path and reason), then passed over.
std::optional<CheckpointInfo> newest_checkpoint(
    const std::string& output_dir,
    const std::function<void(const std::string& path, const std::string& reason)>& skipped,
    const std::function<void()>& progress = {});

// Removes the oldest checkpoints until `limit` (at least 1) are left, never those whose path is in
// `keep`. Returns what was removed.
std::vector<std::string> rotate_checkpoints(const std::string& output_dir, std::int64_t limit,
                                            const std::vector<std::string>& keep);
// Removes what writers that died have left (tmp-checkpoint-*). Nobody may be writing there.
void remove_unfinished_checkpoints(const std::string& output_dir);
// A writer that died while it replaced a whole checkpoint by one of the same step had moved the
// older one aside: it comes back. Nobody may be writing there.
void restore_replaced_checkpoints(const std::string& output_dir);

// One checkpoint being written. Without commit() nothing is left of it.
class CheckpointTransaction {
 public:
  // Makes <output_dir>/tmp-checkpoint-N.<rank>, and output_dir if missing. io with path and reason.
  CheckpointTransaction(const std::string& output_dir, std::int64_t step, int rank);
  // A directory of any name instead, its temporary beside it.
  CheckpointTransaction(const std::string& path, std::int64_t step);
  ~CheckpointTransaction();
  CheckpointTransaction(const CheckpointTransaction&) = delete;
  CheckpointTransaction& operator=(const CheckpointTransaction&) = delete;

  const std::string& directory() const { return temporary_; }  // put the files here
  // Syncs every file, writes the marker, and renames the directory into place (an older one of this
  // step is replaced). Returns the final path. io when any of it fails. `sealed`: files that
  // their writers have read already; corrupt_data where one is not there with these bytes.
  // `elsewhere`: files of this checkpoint that lie in another host's directory of this name, until
  // the two are put together; the marker names them too.
  std::string commit(std::span<const SealedFile> sealed = {},
                     std::span<const SealedFile> elsewhere = {});
  // That other directory, whose files their writers have sealed: it gets no marker.
  std::string commit_part();

 private:
  void make_temporary(std::string_view what);  // what to choose another of
  std::string take_place();                    // the rename; where an older one went

  std::string temporary_, final_;
  std::int64_t step_;
  bool committed_ = false;
};

}  // namespace shoal
