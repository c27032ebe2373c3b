// What shoal plan shows of layouts beside its table: one layout in full, and a page of pictures.
#pragma once

#include <cstdint>
#include <string>

#include "shoal/parallel/predict/search.h"

namespace shoal::app {

inline constexpr double kGigabyte = 1e9;

// "16 x 1 x 1, ZeRO 2, microbatches of 4": ranks along data, pipeline and tensor, and so on.
std::string layout_name(const parallel::Candidate& one);

// The time of a step of layout `number` (from 1) by part, its stages, its memory, and what it gives
// up against the fastest and the leanest one. Text of several lines. Throws invalid_argument if
// there is no such layout.
std::string explained(const parallel::SearchResult& result, const parallel::Machine& machine,
                      int number);

struct PlanPage {
  std::string title;     // "gpt2 on 2 x p4d.24xlarge"
  std::string subtitle;  // the batch and so on
  parallel::SearchRequest request;
  const parallel::SearchResult& result;
  double tokens = 0;  // of a whole run, for its hours and dollars; 0: 1e9
};
// An HTML page: the layouts, the parts of their steps, the memory of the fastest one's ranks, the
// timeline of the fastest pipeline, and hours and dollars over the number of nodes.
std::string plan_page(const PlanPage& page);

}  // namespace shoal::app
