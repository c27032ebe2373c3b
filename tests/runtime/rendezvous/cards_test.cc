// Cards of other ranks are either read, or refused in one line that names the rank.
#include "shoal/runtime/rendezvous/cards.h"

#include <limits>
#include <stdexcept>

#include "support/hostile_cards.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/runtime/base/error_code.h"
#include "shoal/runtime/rendezvous/world.h"

namespace shoal {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Numbers, AreTheWholeText) {
  EXPECT_EQ(parse_number<int>("-12"), -12);
  EXPECT_EQ(parse_number<std::int64_t>("9223372036854775807"),
            std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(parse_number<unsigned char>("ff", 16), 255);
  EXPECT_EQ(parse_number<double>("2.5"), 2.5);
  for (const char* text : {"", " 1", "1 ", "+1", "0x1", "1.5", "12a", "2147483648", "--1", "\n"})
    EXPECT_FALSE(parse_number<int>(text)) << text;
  EXPECT_FALSE(parse_number<int>(std::string_view("1\0", 2)));
  EXPECT_FALSE(parse_number<unsigned char>("100", 16));
}

TEST(ErrorCodes, AreAcceptedFromOtherRanksOnlyIfValid) {
  EXPECT_EQ(error_code_of(0), ErrorCode::invalid_argument);
  EXPECT_EQ(error_code_of(static_cast<int>(ErrorCode::internal)), ErrorCode::internal);
  EXPECT_FALSE(error_code_of(-1));
  EXPECT_FALSE(error_code_of(static_cast<int>(ErrorCode::internal) + 1));
  EXPECT_FALSE(error_code_of(std::numeric_limits<std::int64_t>::max()));
}

struct Pair {
  int port = 0;
  std::string name;
};
Pair parse(std::string_view card) {
  CardFields fields(card, '\n');
  Pair pair;
  pair.port = fields.number<int>("port", 1, 65535);
  pair.name = card_name(fields.next("name"));
  fields.end();
  return pair;
}

TEST(Cards, AreReadFieldByField) {
  const Pair pair = read_card(3, "pairs", "29500\nnode 7", parse);
  EXPECT_EQ(pair.port, 29500);
  EXPECT_EQ(pair.name, "node 7");
}

TEST(Cards, ThatAreHostileNameTheirRank) {
  using namespace std::string_literals;
  auto cards = test::hostile_cards();
  cards.insert(cards.end(), {"29500", "29500\n", "29500\na\nb", "0\na", "65536\na", "-1\na",
                             "9223372036854775808\na", " 1\na", "1\na\0b"s, "1\n\x1b[2J", "\0\na"s,
                             "1\n" + std::string(1025, 'a')});
  for (const std::string& card : cards) {
    const Error error = test::error_from([&] { (void)read_card(3, "pairs", card, parse); });
    EXPECT_EQ(error.code(), ErrorCode::corrupt_data) << test::shown(card);
    EXPECT_EQ(error.peer(), 3);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("pairs: the card of rank 3 is unreadable: "),
                                    HasSubstr("run the same build of Shoal on every rank"),
                                    Not(HasSubstr("\n")), Not(HasSubstr("\x1b"))));
    EXPECT_LT(std::string(error.what()).size(), 600U);
  }
}

TEST(Cards, NameTheirRankWhateverParsingThrows) {
  const auto error_of = [](const auto& parse) {
    return test::error_from([&] { read_card(2, "things", "", parse); });
  };
  const Error standard = error_of([](std::string_view) { (void)std::string().at(1); });
  EXPECT_EQ(standard.code(), ErrorCode::corrupt_data);
  const Error own = error_of(
      [](std::string_view) { throw Error(ErrorCode::invalid_argument, "4 of 3", "use less"); });
  EXPECT_EQ(own.code(), ErrorCode::corrupt_data);
  EXPECT_THAT(own.what(), AllOf(HasSubstr("things: the card of rank 2 is unreadable: 4 of 3"),
                                Not(HasSubstr("use less"))));
  EXPECT_THROW(read_card(2, "things", "", [](std::string_view) { throw std::bad_alloc(); }),
               std::bad_alloc);
}

TEST(Cards, OfHostsNameTheirRank) {
  using namespace std::string_literals;
  for (const std::string& card : {"a\0b"s, "a\nb"s, "\x1b]0;x"s, std::string(1 << 20, 'a')}) {
    const auto store = make_hash_store();
    test::PlantedStore planted(*store, "/1", card);
    World world;
    world.size = 2;
    world.host = "a";
    const Error error =
        test::error_from([&] { settle_nodes(world, planted, Deadline::in_seconds(5)); });
    EXPECT_EQ(error.code(), ErrorCode::corrupt_data) << test::shown(card);
    EXPECT_THAT(error.what(), HasSubstr("hosts: the card of rank 1 is unreadable"));
  }
}

}  // namespace
}  // namespace shoal
