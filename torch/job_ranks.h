// The ranks of a group as the job numbers them, and the rank behind a failure.
//
// A Communicator numbers ranks within its group, and so do its Errors. Python's exceptions name the
// job's ranks. A rank may lose a peer only because that peer has failed first, for the lack of a
// third rank in another group. Each rank therefore leaves a statement of its own failure in the
// job's store. An exception quotes the statement of the rank that it names, then of the rank that
// this statement names, and so on.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/rendezvous/store.h"

namespace shoal::pytorch {

class JobRanks : public std::enable_shared_from_this<JobRanks> {
 public:
  // `rank`: this rank's in the group. `members`: by rank of the group, the rank in the job; empty:
  // the group is the job. `store`: shared by all groups of the job; null: no statements. Statements
  // from before this moment do not count.
  JobRanks(int rank, std::vector<int> members, std::shared_ptr<Store> store);

  int in_job(int rank) const;
  std::vector<int> in_job(const std::vector<int>& ranks) const;
  const std::vector<int>& members() const { return members_; }
  const std::shared_ptr<Store>& store() const { return store_; }
  // The error of this group with the job's ranks and, in a part of the job, with the group's.
  Error in_job(const Error& error) const;
  // The same for a failure of the group. States it, and quotes the statements of the ranks to
  // blame. Takes deadlines::kStatements at most.
  Error explained(const Error& error);

 private:
  struct Statement {
    int peer = -1;  // the rank that it blames; -1: none
    std::string text;
  };
  std::string in_job(const std::string& text) const;
  std::string among() const;
  std::optional<Statement> statement_of(int rank) const;
  std::string quotes(const Error& failure, double patience) const;

  const std::vector<int> members_;
  const std::shared_ptr<Store> store_;
  const int rank_;  // in the job
  const std::chrono::system_clock::time_point made_ = std::chrono::system_clock::now();
  std::atomic<bool> has_failed_{false}, store_is_silent_{false};
};

}  // namespace shoal::pytorch
