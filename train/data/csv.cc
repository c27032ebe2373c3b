#include "shoal/train/data/csv.h"

#include <algorithm>

namespace shoal {

std::vector<std::string> split_csv(std::string_view row, bool& is_open) {
  std::vector<std::string> fields;
  // Upper bound: commas inside quotes do not start a field.
  fields.reserve(1 + static_cast<std::size_t>(std::ranges::count(row, ',')));
  fields.emplace_back();
  CsvReader reader;
  std::size_t begin = 0;  // start of the text not yet copied
  for (std::size_t at = 0; (at = reader.pass_text(row, at)) < row.size(); ++at) {
    const CsvReader::Meaning meaning = reader.take(row[at]);
    if (meaning == CsvReader::Meaning::text) continue;
    fields.back().append(row, begin, at - begin);
    begin = at + 1;
    if (meaning == CsvReader::Meaning::comma) fields.emplace_back();
  }
  fields.back().append(row, begin);
  is_open = reader.in_quotation();
  return fields;
}

}  // namespace shoal
