#include "shoal/collectives/backend/device/segments.h"

#include <map>
#include <utility>

namespace shoal::collectives::device {
namespace {

// Ranks that are threads of one process find each other's segments here by number.
struct Directory {
  std::mutex mutex;
  std::uint64_t last = 0;
  std::map<std::uint64_t, std::weak_ptr<Segments>> all;
  static Directory& get() {
    static auto& directory = *new Directory;  // ranks may end after static objects are destroyed
    return directory;
  }
};

}  // namespace

Segments::Pointer Segments::make(std::shared_ptr<PeerAccess> access) {
  Pointer made(new Segments(std::move(access)));
  Directory& directory = Directory::get();
  const std::lock_guard lock(directory.mutex);
  made->number_ = ++directory.last;
  directory.all.emplace(made->number_, made);
  return made;
}

Segments::~Segments() {
  {
    Directory& directory = Directory::get();
    const std::lock_guard lock(directory.mutex);
    directory.all.erase(number_);
  }
  for (void* base : bases_)
    if (!kept_) access_->deallocate(base);
}

Segments::Pointer Segments::find(std::uint64_t number) {
  Directory& directory = Directory::get();
  const std::lock_guard lock(directory.mutex);
  const auto found = directory.all.find(number);
  return found == directory.all.end() ? nullptr : found->second.lock();
}

std::size_t Segments::count() {
  Directory& directory = Directory::get();
  const std::lock_guard lock(directory.mutex);
  return directory.all.size();
}

}  // namespace shoal::collectives::device
