#include "shoal/train/trainer/directories.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>
#include <thread>

#include <nlohmann/json.hpp>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/byte_source.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/runtime/io/files.h"
#include "shoal/runtime/io/json.h"

namespace shoal {
namespace {

using collectives::Communicator;
using collectives::ReduceOp;

constexpr std::int64_t kChunk = std::int64_t{8} << 20U;  // bytes of a broadcast
constexpr int kLooks = 10;  // a network file system may show files late
constexpr std::chrono::milliseconds kBetweenLooks{20};

std::int64_t from_root(Communicator& c, std::int64_t value, int root) {
  c.broadcast(&value, 1, DType::i64, root)->wait();
  return value;
}

bool any_rank(Communicator& c, bool mine) {
  std::int64_t flag = mine;
  c.all_reduce(&flag, &flag, 1, DType::i64, ReduceOp::max)->wait();
  return flag != 0;
}

void put_probe(const std::string& directory, const std::string& probe) {
  make_directories(directory, "choose another --output_dir or its permissions");
  write_file(probe, "seen");
}

bool appears(const std::string& path) {
  for (int look = 0; look < kLooks; ++look) {
    if (path_exists(path)) return true;
    std::this_thread::sleep_for(kBetweenLooks);
  }
  return false;
}

// [{"name": "shard-00001-of-00002.safetensors", "bytes": 1234}, ...]: the files in the root's
// directory.
nlohmann::json listed(Communicator& c, int root, const std::string& path) {
  std::string text;
  if (c.rank() == root) {
    nlohmann::json files = nlohmann::json::array();
    if (path_exists(path))
      for (const DirectoryEntry& entry : list_tree(path))
        if (entry.kind == FileKind::regular)
          files.push_back({{"name", entry.name}, {"bytes", file_bytes(entry.path).value_or(0)}});
    text = files.dump();
  }
  text.resize(static_cast<std::size_t>(from_root(c, std::ssize(text), root)));
  c.broadcast(text.data(), std::ssize(text), DType::u8, root)->wait();
  return parse_json(text, "the list of a checkpoint's files");
}

// Sends one file from the root to the ranks that lack it.
void spread(Communicator& c, int root, const std::string& file, std::int64_t bytes, bool lacks) {
  std::shared_ptr<ByteSource> source;
  std::optional<AtomicFile> copy;
  if (c.rank() == root) source = open_file(file);
  if (lacks) {
    make_directories(std::filesystem::path(file).parent_path());
    copy.emplace(file, bytes);
  }
  std::vector<std::byte> chunk;
  for (std::int64_t at = 0; at < bytes; at += kChunk) {
    chunk.resize(static_cast<std::size_t>(std::min(kChunk, bytes - at)));
    if (source) source->read(at, chunk);
    c.broadcast(chunk.data(), std::ssize(chunk), DType::u8, root)->wait();
    if (copy) copy->write(chunk);
  }
  if (copy) copy->commit();
}

}  // namespace

bool DirectoryOwners::is_shared() const {
  return std::ranges::all_of(of_rank, [](int owner) { return owner == 0; });
}

DirectoryOwners find_owners(Communicator& c, const std::string& path) {
  const auto size = static_cast<std::size_t>(c.size());
  DirectoryOwners owners;
  owners.of_rank.assign(size, c.size() == 1 ? 0 : -1);
  for (int owner = 0; owner < c.size(); ++owner) {
    if (owners.of_rank[static_cast<std::size_t>(owner)] >= 0) continue;
    // A new name each time: some file systems remember that a file was absent. If the probe is left
    // behind, the next run removes it.
    const auto now = std::chrono::system_clock::now().time_since_epoch().count();
    const std::string probe = fmt::format("{}/tmp-checkpoint-seen-by-rank-{}-{}", path, owner,
                                          from_root(c, static_cast<std::int64_t>(now), owner));
    // Rank 0 must be able to write. Other ranks may have nothing to write, so their errors are only
    // logged.
    if (c.rank() == owner && owner == 0) put_probe(path, probe);
    if (c.rank() == owner && owner != 0)
      best_effort(fmt::format("write on the host of rank {}", owner),
                  [&] { put_probe(path, probe); });
    c.barrier()->wait();
    const bool is_open = owners.of_rank[static_cast<std::size_t>(c.rank())] < 0;
    std::vector<std::int64_t> sees(size, 0);
    sees[static_cast<std::size_t>(c.rank())] = c.rank() == owner || (is_open && appears(probe));
    c.all_reduce(sees.data(), sees.data(), c.size(), DType::i64, ReduceOp::sum)->wait();
    if (c.rank() == owner) best_effort("remove a probe", [&] { remove_file(probe); });
    for (std::size_t rank = 0; rank < size; ++rank)
      if (sees[rank] != 0 && owners.of_rank[rank] < 0) owners.of_rank[rank] = owner;
  }
  return owners;
}

void gather_files(Communicator& c, const DirectoryOwners& owners, const std::string& path,
                  bool to_first) {
  if (owners.is_shared()) return;
  const bool takes = to_first ? c.rank() == 0 : owners.is_owner(c.rank());
  for (int owner = 0; owner < c.size(); ++owner) {
    if (!owners.is_owner(owner) || (to_first && owner == 0)) continue;
    for (const nlohmann::json& entry : listed(c, owner, path)) {
      const std::string file = path + "/" + entry.at("name").get<std::string>();
      const auto bytes = entry.at("bytes").get<std::int64_t>();
      const bool lacks = takes && c.rank() != owner && file_bytes(file) != bytes;
      if (any_rank(c, lacks)) spread(c, owner, file, bytes, lacks);
    }
  }
}

}  // namespace shoal
