// Positions of ranks on the mesh rdp × pp × tp: pure arithmetic.
//
//   const MeshShape shape = mesh_shape(8, 2, 2);  // 8 ranks, pp 2, tp 2: rdp 2
//   const Placement placement("cluster");
//   const MeshPlace place = placement.place_of(5, shape);           // rdp 1, pp 0, tp 1
//   const std::vector<int> peers = placement.group(5, kTp, shape);  // {4, 5}
//
// SMP's terms: rdp is the reduced data-parallel axis (replicas of the whole model), pp the
// pipeline, tp tensor parallelism. A placement is a permutation of D, P and T; the right-most
// letter varies fastest over the global ranks.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace shoal::parallel {

enum class Axis : unsigned { tp = 1, pp = 2, rdp = 4 };  // one bit each, for Axes
// A set of axes names a group: the ranks that differ from this one only along these axes.
using Axes = unsigned;
inline constexpr Axes kTp = 1, kPp = 2, kRdp = 4;
inline constexpr Axes kMp = kPp | kTp;   // one replica of the model
inline constexpr Axes kDp = kRdp | kTp;  // ranks that may see different samples

struct MeshShape {  // number of ranks along each axis
  int rdp = 1, pp = 1, tp = 1;
  int size() const { return rdp * pp * tp; }
  int size(Axes axes) const;
  bool operator==(const MeshShape&) const = default;
};

struct MeshPlace {  // a rank's index along each axis
  int rdp = 0, pp = 0, tp = 0;
  bool operator==(const MeshPlace&) const = default;
};

class Placement {  // maps global ranks to positions on the mesh
 public:
  Placement() = default;  // cluster
  // "cluster" (DPT), "spread" (TPD) or the letters in any order and case. Otherwise throws an Error
  // that lists the choices.
  explicit Placement(std::string_view text);
  const std::string& letters() const { return letters_; }  // "DPT"
  bool operator==(const Placement&) const = default;

  // A rank outside the mesh throws invalid_argument, also in group().
  MeshPlace place_of(int rank, const MeshShape& shape) const;
  int rank_at(const MeshPlace& place, const MeshShape& shape) const;
  // The ranks of `rank`'s group along `axes`, ascending.
  std::vector<int> group(int rank, Axes axes, const MeshShape& shape) const;
  // Index of `rank`'s group among the groups along `axes`, which are numbered by their smallest
  // rank.
  int group_index(int rank, Axes axes, const MeshShape& shape) const;

 private:
  std::string letters_ = "DPT";
};

// The mesh of `ranks` ranks for these degrees; rdp gets the remaining factor. If they do not
// divide, throws invalid_argument with the numbers and the degrees that would work.
MeshShape mesh_shape(int ranks, int pipeline_parallel_degree, int tensor_parallel_degree);

// One line per rank: global rank, rdp, pp, tp and the groups' ranks. Above 64 ranks the middle is
// omitted.
std::string placement_table(const MeshShape& shape, const Placement& placement);

}  // namespace shoal::parallel
