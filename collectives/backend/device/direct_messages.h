// Messages between ranks of one host that reach each other's memory. The sender announces where its
// buffer lies. The receiver copies the data from there and reports that it has done so.
//
// Each pair of ranks exchanges notices in both directions over the host's Communicator: where data
// is, and that it was taken. If peers cannot reach a buffer, its data follows the notice through
// pinned memory. Only the engine's thread uses this class.
#pragma once

#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>

#include "shoal/collectives/backend/device/peer_memory.h"
#include "shoal/collectives/communicator.h"

namespace shoal::collectives::device {

struct DeviceOperation;

class DirectMessages {
 public:
  using Message = std::shared_ptr<DeviceOperation>;
  struct Setup {
    Communicator* inner;
    OpenedSegments* opened;
    MemoryResource* staging;  // pinned
    Stream in, out;           // work queued there waits for no other work
    std::function<SharedPlace(const void*, std::int64_t)> place_of;
    std::function<void(DeviceOperation&, bool staged)> end;  // called when the operation is done
  };
  explicit DirectMessages(Setup setup) : setup_(std::move(setup)) {}

  void take(Message message);
  bool progress();  // returns true if there was progress; throws the Error of any message
  bool idle() const;
  void give_up();  // throws timeout for the oldest message that waits for a notice, if one does
  // Visits all messages, then forgets them.
  void drop(const std::function<void(DeviceOperation&)>& visit);

 private:
  struct Notice {
    enum class Kind : std::uint32_t { where, taken };
    Kind kind = Kind::where;
    std::int32_t dtype = 0;
    std::int64_t count = 0;
    SharedPlace place{};  // base 0: the data follows through pinned memory, if any
  };
  struct Outgoing {
    Message message;
    Buffer staged{};
    std::optional<Event> copied{};
  };
  struct Arrived {
    Notice notice;
    Buffer staged{};
    WorkPtr data{};
  };
  struct Taking {
    Message message;
    Arrived from;
    Event copied;
  };
  struct Leaving {
    std::unique_ptr<Notice> notice;  // null: this is the data that follows a notice
    WorkPtr work;
  };
  // All lists are in call order.
  struct Peer {
    std::deque<Outgoing> outgoing;   // sends not announced to the peer yet
    std::deque<Outgoing> announced;  // announced sends not taken yet
    std::deque<Message> wanted;      // recvs without a matching notice
    std::deque<Arrived> arrived;
    std::deque<Taking> taking;
    std::list<Leaving> leaving;
    Notice heard;
    WorkPtr listening;  // for `heard`
  };
  bool tell(int rank, Peer& peer);
  bool listen(int rank, Peer& peer);
  bool take_next(int rank, Peer& peer);
  bool finish(int rank, Peer& peer);
  void leave(int rank, Peer& peer, const Notice& notice);
  void check(int rank, const DeviceOperation& wanted, const Notice& notice);

  Setup setup_;
  std::map<int, Peer> peers_;
};

}  // namespace shoal::collectives::device
