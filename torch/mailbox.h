// Messages with tags, and receives from any source, over a Communicator that has neither.
//
// A message is a header followed by its data, if any. From the header the receiver knows which data
// comes next from that rank. It receives the data into the tensor of the matching receive. Without
// a matching receive, it receives the data into a buffer, which a later receive takes.
//
// A receive from any rank posts a receive for a header of every peer. A posted receive cannot be
// withdrawn. A rank that leaves therefore sends a last header, which says that it leaves.
//
// Not thread-safe: guarded by the Lane's mutex.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "shoal/collectives/communicator.h"
#include "shoal/runtime/base/error.h"

namespace shoal::pytorch {

class Mailbox {
 public:
  struct Header {
    std::int64_t tag = 0, elements = 0, bytes = 0;
    std::int64_t scalar_type = 0;
    std::int64_t leaves = 0;  // 1: the sender leaves; no message follows
  };
  // A posted receive.
  struct Receive {
    int source = -1;  // -1: any
    int tag = 0;
    at::Tensor into;  // contiguous
    int from = -1;    // the sender, once matched
    collectives::WorkPtr data;
    at::Tensor aside;  // the message's bytes, if it came before this receive
    std::optional<Error> problem;

    bool arrived();  // throws `problem`
    void copy_to(at::Tensor& target) const;
    std::string name() const;         // "recv of 4 Float from rank 1 with tag 0"
    std::string whereabouts() const;  // for the error of a time-out
  };
  // A message that is being sent; `header` must live until both Works are done.
  struct Sent {
    std::shared_ptr<Header> header;
    collectives::WorkPtr header_work, data_work;
  };

  explicit Mailbox(collectives::Communicator& ranks);
  Sent send(const at::Tensor& tensor, int to, int tag);  // contiguous
  void receive(std::shared_ptr<Receive> receive);
  // Ends a receive that has timed out. Data already in flight is still written to its tensor.
  void cancel(const std::shared_ptr<Receive>& receive);
  // True if no receive needs progress().
  bool idle() const { return waiting_.empty() && refused_.empty(); }
  // Takes headers that have arrived and starts to receive their data. An Error fails the waiting
  // receives, not the operation of the thread that calls this.
  void progress();
  // Tells the other ranks that this rank sends no more messages. Destroy the Communicator before
  // the Mailbox, since it may still use the Mailbox's memory.
  void leave();

 private:
  struct Unexpected {
    Header header;
    std::uint64_t arrival = 0;
    at::Tensor bytes;
    collectives::WorkPtr data;
  };
  struct Peer {
    std::unique_ptr<Header> header;
    collectives::WorkPtr header_work;  // null: no receive of a header is posted
    std::deque<Unexpected> unexpected;
    bool left = false;
  };

  void ask(int peer);  // posts a receive for the next header
  void take(int peer);
  void note_left(int peer);
  bool may_come(const Receive& receive) const;  // false: all possible senders have left
  bool hand_over(Receive& receive);
  static bool fits(Receive& receive, const Header& header, int from);

  collectives::Communicator& ranks_;
  std::vector<Peer> peers_;
  std::deque<std::shared_ptr<Receive>> waiting_;
  std::vector<Unexpected> refused_;  // mismatched messages whose data is still in flight
  std::vector<std::shared_ptr<Receive>> cancelled_;  // their data is still in flight
  std::vector<Sent> last_words_;
  std::uint64_t arrivals_ = 0;
};

}  // namespace shoal::pytorch
