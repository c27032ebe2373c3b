// Messages with tags and from any source, over a Communicator whose messages have neither.
//
// A message is a header, then its data if there is any. The receiver always knows from the header
// which data comes next from that rank. It takes the data into the tensor of the receive that
// matches, or else into memory of its own until a receive asks for it.
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
  };
  // A receive that was asked for.
  struct Receive {
    int source = -1;  // -1: any
    int tag = 0;
    at::Tensor into;  // contiguous
    int from = -1;    // the rank that sent it, once it is matched
    collectives::WorkPtr data;
    at::Tensor aside;  // the message, if it came before it was asked for; bytes
    std::optional<Error> problem;

    bool arrived();  // throws `problem`
    void copy_to(at::Tensor& target) const;
    std::string name() const;         // "recv of 4 Float from rank 1 with tag 0"
    std::string whereabouts() const;  // for a time-out
  };
  // A message that is being sent; `header` must live until both Works are done.
  struct Sent {
    std::shared_ptr<Header> header;
    collectives::WorkPtr header_work, data_work;
  };

  explicit Mailbox(collectives::Communicator& ranks);
  Sent send(const at::Tensor& tensor, int to, int tag);  // contiguous
  void receive(std::shared_ptr<Receive> receive);
  // Ends a receive that has timed out. Data already on its way still arrives in its memory.
  void cancel(const std::shared_ptr<Receive>& receive);
  // Whether no receive waits for progress().
  bool idle() const { return waiting_.empty() && refused_.empty(); }
  // Takes headers that have arrived and begins their data. Throws peer_lost and aborted.
  void progress();

 private:
  struct Unexpected {
    Header header;
    std::uint64_t arrival = 0;
    at::Tensor bytes;
    collectives::WorkPtr data;
  };
  struct Peer {
    std::unique_ptr<Header> header;
    collectives::WorkPtr header_work;  // null: no header is asked for
    std::deque<Unexpected> unexpected;
  };

  void ask(int peer);  // for the next header
  void take(int peer);
  bool hand_over(Receive& receive);
  static bool fits(Receive& receive, const Header& header, int from);

  collectives::Communicator& ranks_;
  std::vector<Peer> peers_;
  std::deque<std::shared_ptr<Receive>> waiting_;
  std::vector<Unexpected> refused_;  // data that no receive takes, until it has arrived
  std::vector<std::shared_ptr<Receive>> cancelled_;  // while their data is on its way
  std::uint64_t arrivals_ = 0;
};

}  // namespace shoal::pytorch
