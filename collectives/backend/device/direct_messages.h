// Messages between ranks of one host that reach each other's memory: the sender tells where its
// buffer lies, the receiver copies out of it and says when that is done.
//
// Each pair of ranks has one line of notices in each direction, over the host's Communicator: where
// data is, and that it was taken. A buffer that peers cannot reach follows its notice through
// pinned memory. For the engine's thread.
#pragma once

#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>

#include "shoal/collectives/backend/call_communicator.h"
#include "shoal/collectives/backend/device/peer_memory.h"

namespace shoal::collectives::device {

struct DeviceOperation;

class DirectMessages {
 public:
  using Message = std::shared_ptr<DeviceOperation>;
  struct Setup {
    Communicator* inner;
    OpenedSegments* opened;
    MemoryResource* staging;  // pinned
    Stream in, out;           // what it queues there waits for nothing
    std::function<SharedPlace(const void*, std::int64_t)> place_of;
    std::function<void(DeviceOperation&, bool staged)> end;  // the operation is done
  };
  explicit DirectMessages(Setup setup) : setup_(std::move(setup)) {}

  void take(Message message);
  bool progress();  // true: something went on. Throws the Error of any message.
  bool idle() const;
  void give_up();  // throws timeout, with the operation that is not done
  void drop(const std::function<void(DeviceOperation&)>& visit);  // all of them, done or not

 private:
  struct Notice {
    enum class Kind : std::uint32_t { where, taken };
    Kind kind = Kind::where;
    std::int32_t dtype = 0;
    std::int64_t count = 0;
    SharedPlace place{};  // base 0: the data follows, if there is any
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
    std::unique_ptr<Notice> notice;  // null: the data behind one
    WorkPtr work;
  };
  // Everything in the order of the calls.
  struct Peer {
    std::deque<Outgoing> outgoing;  // sends that the peer has not been told of
    std::deque<Outgoing> told;      // that it has not taken
    std::deque<Message> wanted;     // recvs that nothing has been matched with
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
