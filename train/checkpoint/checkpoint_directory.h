// checkpoint-N/ directories are written under another name, synced, marked and then renamed
// (decision 13).
//
//   <output_dir>/tmp-checkpoint-N.<rank>/   being written; ignored, and removed later
//   <output_dir>/checkpoint-N/              renamed into place
//   <output_dir>/checkpoint-N/COMPLETE      JSON: every file with its bytes and SHA-256;
//                                           without it the checkpoint is invalid
//
// A checkpoint is damaged if files are missing or differ from the marker. A file system error (EIO,
// EACCES, ESTALE, ...) does not show damage: every function here throws io then.
//
// One rank owns the transaction. Other ranks may write and seal files in its directory; they must
// finish before it commits. Any rank may read. Calls block on the file system.
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
// File of whole tensors, "exp_avg/NAME" and the like; shards store them beside the weights.
inline constexpr std::string_view kOptimizerStateFile = "optimizer.safetensors";

struct CheckpointInfo {
  std::int64_t step = 0;
  std::string path;
};

std::string checkpoint_path(const std::string& output_dir, std::int64_t step);
// Directory of rank `rank`'s transaction until it is complete.
std::string unfinished_checkpoint_path(const std::string& output_dir, std::int64_t step, int rank);

// Everything named checkpoint-<digits>, by rising step: directories, complete or not, and files and
// dangling links, which are damaged checkpoints. Empty if `output_dir` does not exist.
std::vector<CheckpointInfo> list_checkpoints(const std::string& output_dir);

// Reader `index` of `readers` that verify a checkpoint together. Each reads whole files, of about
// equal bytes in total.
struct ChecksumShare {
  int index = 0, readers = 1;
};
// Why a checkpoint cannot be used; nullopt if it is complete. `checksums`: also reads every byte of
// the share's files, with signs of progress (runtime/base/progress.h), and trainer_state.json.
std::optional<std::string> checkpoint_problem(const std::string& path, bool checksums,
                                              const ChecksumShare& share = {});

struct DamagedCheckpoint {
  std::string path, reason;
};
// A corrupt_data error saying that no checkpoint is complete, with the reason for each.
Error none_is_whole(const std::string& output_dir, const std::vector<DamagedCheckpoint>& damaged,
                    std::string remedy);

// The complete checkpoint of the highest step. Each newer incomplete one is reported to `skipped`
// (path and reason).
std::optional<CheckpointInfo> newest_checkpoint(
    const std::string& output_dir,
    const std::function<void(const std::string& path, const std::string& reason)>& skipped);

// Removes the oldest directories of checkpoints until `limit` (at least 1) are left, except the
// paths in `keep`. Returns the removed paths.
std::vector<std::string> rotate_checkpoints(const std::string& output_dir, std::int64_t limit,
                                            const std::vector<std::string>& keep);
// Removes directories left by writers that died (tmp-checkpoint-*). No process may be writing
// there.
void remove_unfinished_checkpoints(const std::string& output_dir);
// Restores a complete checkpoint that a writer had moved aside when it died while replacing it by
// one of the same step. No process may be writing there.
void restore_replaced_checkpoints(const std::string& output_dir);

// One checkpoint being written. Without commit() its destructor removes it.
class CheckpointTransaction {
 public:
  // Creates <output_dir>/tmp-checkpoint-N.<rank>, and output_dir if missing. Throws io with path
  // and reason.
  CheckpointTransaction(const std::string& output_dir, std::int64_t step, int rank);
  // Writes a directory of any name instead; its temporary directory is beside it.
  CheckpointTransaction(const std::string& path, std::int64_t step);
  ~CheckpointTransaction();
  CheckpointTransaction(const CheckpointTransaction&) = delete;
  CheckpointTransaction& operator=(const CheckpointTransaction&) = delete;

  const std::string& directory() const { return temporary_; }  // put the files here
  // Syncs every file, writes the marker, and renames the directory into place, replacing an older
  // one of this step. Returns the final path. Throws io if any of this fails.
  //
  // `sealed`: files that their writers have hashed already; throws corrupt_data if one is missing
  // or has another size. `elsewhere`: files of this checkpoint that are in another host's directory
  // of the same name until the two are merged; the marker lists them too.
  std::string commit(std::span<const SealedFile> sealed = {},
                     std::span<const SealedFile> elsewhere = {});
  // Commits this host's directory of files that rank 0 lists as `elsewhere`. Their writers have
  // sealed them. Writes no marker.
  std::string commit_part();

 private:
  void make_temporary(std::string_view what);  // `what`: the setting to change on failure
  std::string take_place();                    // renames; returns the replaced path

  std::string temporary_, final_;
  std::int64_t step_;
  bool committed_ = false;
};

}  // namespace shoal
