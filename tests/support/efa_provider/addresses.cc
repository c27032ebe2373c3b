#include "addresses.h"

#include <algorithm>
#include <cstring>
#include <mutex>

#include "card.h"
#include "domain.h"
#include <rdma/fi_errno.h>

namespace shoal::test::efa {
namespace {

int insert(fid_av* av, const void* from, std::size_t count, fi_addr_t* inserted,
           std::uint64_t flags, void*) {
  if (flags != 0) return -FI_EINVAL;
  auto& addresses = *static_cast<Addresses*>(av);
  const std::lock_guard lock(addresses.domain->mutex);
  const auto* bytes = static_cast<const std::byte*>(from);
  for (std::size_t i = 0; i < count; ++i) {
    Address address;
    std::memcpy(&address, bytes + i * sizeof address, sizeof address);
    fi_addr_t index = addresses.index_of(address);
    if (index == FI_ADDR_NOTAVAIL) {
      index = addresses.table.size();
      addresses.table.emplace_back(address);
      addresses.index[address] = index;
    }
    if (inserted) inserted[i] = index;
  }
  return static_cast<int>(count);
}

int remove(fid_av* av, fi_addr_t* indexes, std::size_t count, std::uint64_t) {
  auto& addresses = *static_cast<Addresses*>(av);
  const std::lock_guard lock(addresses.domain->mutex);
  for (std::size_t i = 0; i < count; ++i) {
    const Address* address = addresses.find(indexes[i]);
    if (!address) return -FI_EINVAL;
    addresses.index.erase(*address);
    addresses.table[indexes[i]].reset();
  }
  return FI_SUCCESS;
}

int look_up(fid_av* av, fi_addr_t index, void* to, std::size_t* bytes) {
  auto& addresses = *static_cast<Addresses*>(av);
  const std::lock_guard lock(addresses.domain->mutex);
  const Address* address = addresses.find(index);
  if (!address) return -FI_EINVAL;
  std::memcpy(to, address, std::min(*bytes, sizeof *address));
  *bytes = sizeof *address;
  return FI_SUCCESS;
}

const char* to_text(fid_av*, const void* from, char* buffer, std::size_t* bytes) {
  Address address;
  std::memcpy(&address, from, sizeof address);
  const std::string text = text_of(address);
  if (buffer && *bytes > 0) {
    const std::size_t length = text.copy(buffer, *bytes - 1);
    buffer[length] = '\0';
  }
  *bytes = text.size() + 1;
  return buffer;
}

int close_addresses(fid* object) {
  auto* addresses = static_cast<Addresses*>(reinterpret_cast<fid_av*>(object));
  {
    const std::lock_guard lock(addresses->domain->mutex);
    if (addresses->endpoints > 0) return -FI_EBUSY;
    --addresses->domain->children;
  }
  delete addresses;
  return FI_SUCCESS;
}

}  // namespace

const Address* Addresses::find(fi_addr_t index_of_peer) const {
  return index_of_peer < table.size() && table[index_of_peer] ? &*table[index_of_peer] : nullptr;
}

fi_addr_t Addresses::index_of(const Address& address) const {
  const auto found = index.find(address);
  return found == index.end() ? FI_ADDR_NOTAVAIL : found->second;
}

int open_addresses(fid_domain* domain, fi_av_attr* attributes, fid_av** made, void* context) {
  if (attributes && attributes->type == FI_AV_MAP) return -FI_ENOSYS;
  if (attributes && (attributes->name || attributes->flags != 0)) return -FI_ENOSYS;
  static fi_ops operations = only_close(close_addresses);
  static fi_ops_av calls{.size = sizeof(fi_ops_av),
                         .insert = insert,
                         .insertsvc = not_offered,
                         .insertsym = not_offered,
                         .remove = remove,
                         .lookup = look_up,
                         .straddr = to_text,
                         .av_set = not_offered};
  auto* addresses = new Addresses{};
  addresses->fid = {FI_CLASS_AV, context, &operations};
  addresses->ops = &calls;
  addresses->domain = static_cast<Domain*>(domain);
  const std::lock_guard lock(addresses->domain->mutex);
  ++addresses->domain->children;
  *made = addresses;
  return FI_SUCCESS;
}

}  // namespace shoal::test::efa
