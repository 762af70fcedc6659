// Single objects, views and buffers through ems.h, against real daemons.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>

#include "tests/integrations/c/api_test.h"

namespace ems::capi {
namespace {

using ::testing::HasSubstr;

class ClientApiTest : public ApiTest {};

TEST_F(ClientApiTest, PutGetStatExistsRemove) {
  EXPECT_EQ(Get("round"), "EMS_NOT_FOUND");
  EXPECT_EQ(ems_exists(client_, "round", 5, nullptr), EMS_NOT_FOUND);
  ASSERT_EQ(Put("round", "value"), EMS_OK) << ems_last_error();
  EXPECT_EQ(Get("round"), "value");
  EXPECT_EQ(ems_exists(client_, "round", 5, nullptr), EMS_OK);
  uint64_t length = 0;
  EXPECT_EQ(ems_stat(client_, "round", 5, &length, nullptr), EMS_OK);
  EXPECT_EQ(length, 5u);
  EXPECT_EQ(ems_remove(client_, "round", 5, nullptr), EMS_OK);
  EXPECT_EQ(ems_remove(client_, "round", 5, nullptr), EMS_NOT_FOUND);
  EXPECT_EQ(ems_stat(client_, "round", 5, &length, nullptr), EMS_NOT_FOUND);
  EXPECT_EQ(length, 0u);
  EXPECT_STREQ(ems_last_error(), "no such key");
}

TEST_F(ClientApiTest, OtherBytesNeedTheOverwriteFlag) {
  ASSERT_EQ(Put("over", "old"), EMS_OK);
  EXPECT_EQ(Put("over", "old"), EMS_OK);
  EXPECT_EQ(Put("over", "new"), EMS_ALREADY_EXISTS);
  EXPECT_EQ(Get("over"), "old");
  ems_call_options options;
  ASSERT_EQ(ems_call_options_init(&options, sizeof(options)), EMS_OK);
  options.flags = EMS_OVERWRITE;
  EXPECT_EQ(ems_put(client_, "over", 4, "new", 3, &options), EMS_OK);
  EXPECT_EQ(Get("over"), "new");
}

TEST_F(ClientApiTest, PiecesAreGatheredAndScattered) {
  std::string a = "one ", b = "two ", c = "three";
  std::array<ems_iov, 3> iov{PieceOf(&a), PieceOf(&b), PieceOf(&c)};
  const ems_pieces value{.iov = iov.data(), .count = iov.size()};
  ASSERT_EQ(ems_putv(client_, "pieces", 6, &value, nullptr), EMS_OK) << ems_last_error();
  EXPECT_EQ(Get("pieces"), "one two three");
  for (std::string* part : {&a, &b, &c}) part->assign(part->size(), '?');
  size_t length = 0;
  ASSERT_EQ(ems_getv(client_, "pieces", 6, &value, &length, nullptr), EMS_OK) << ems_last_error();
  EXPECT_EQ(length, 13u);
  EXPECT_EQ(a + b + c, "one two three");

  std::string middle(5, '?');
  ASSERT_EQ(ems_get_range(client_, "pieces", 6, 4, middle.data(), 5, nullptr), EMS_OK);
  EXPECT_EQ(middle, "two t");
  const ems_pieces two{.iov = iov.data(), .count = 2};  // 4 + 4 bytes
  ASSERT_EQ(ems_get_rangev(client_, "pieces", 6, 5, &two, nullptr), EMS_OK);
  EXPECT_EQ(a + b, "wo three");
  EXPECT_EQ(ems_get_range(client_, "pieces", 6, 9, middle.data(), 5, nullptr), EMS_OUT_OF_RANGE);
}

TEST_F(ClientApiTest, ARoomThatIsTooSmallIsSaid) {
  ASSERT_EQ(Put("large", "twelve bytes"), EMS_OK);
  std::array<char, 4> small;
  size_t length = 99;
  EXPECT_EQ(ems_get(client_, "large", 5, small.data(), small.size(), &length, nullptr),
            EMS_OUT_OF_RANGE);
  EXPECT_EQ(length, 0u);
}

TEST_F(ClientApiTest, AViewIsTheValueAndOutlivesItsClient) {
  ASSERT_EQ(Put("view", "look, no copy"), EMS_OK);
  ems_view* view = nullptr;
  ASSERT_EQ(ems_get_view(client_, "view", 4, &view, nullptr), EMS_OK) << ems_last_error();
  EXPECT_EQ(ems_view_verify(view), EMS_OK);
  ems_client_destroy(client_);
  client_ = nullptr;
  EXPECT_EQ(std::string(static_cast<const char*>(ems_view_data(view)), ems_view_size(view)),
            "look, no copy");
  ems_view_release(view);
}

TEST_F(ClientApiTest, AMissIsNoView) {
  ems_view* view = reinterpret_cast<ems_view*>(this);
  EXPECT_EQ(ems_get_view(client_, "no view", 7, &view, nullptr), EMS_NOT_FOUND);
  EXPECT_EQ(view, nullptr);
}

TEST_F(ClientApiTest, ABufferIsPutFromWhereItIs) {
  ems_buffer* buffer = nullptr;
  ASSERT_EQ(ems_buffer_alloc(client_, 8192, &buffer), EMS_OK) << ems_last_error();
  ASSERT_GE(ems_buffer_size(buffer), 8192u);
  char* bytes = static_cast<char*>(ems_buffer_data(buffer));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(bytes) % 4096, 0u);
  std::memset(bytes, 'b', 8192);
  ASSERT_EQ(ems_put(client_, "staged", 6, bytes + 4096, 100, nullptr), EMS_OK);
  EXPECT_EQ(Get("staged"), std::string(100, 'b'));
  ems_buffer_release(buffer);
  ASSERT_EQ(ems_buffer_alloc(client_, uint64_t{1} << 50, &buffer), EMS_RESOURCE_EXHAUSTED);
  EXPECT_EQ(buffer, nullptr);
}

// Every pointer and every length of every call, one at a time.
TEST_F(ClientApiTest, BadInputIsACodeAndAText) {
  char byte = 'x';
  size_t length = 0;
  uint64_t stat = 0;
  ems_view* view = nullptr;
  ems_buffer* buffer = nullptr;
  ems_client* client = nullptr;
  const std::string key(513, 'k');
  const ems_pieces none{.iov = nullptr, .count = 1};
  ems_call_options bad{};
  const auto refused = [](ems_status code, const std::string& text) {
    EXPECT_EQ(code, EMS_INVALID_ARGUMENT) << text;
    EXPECT_THAT(std::string(ems_last_error()), HasSubstr(text));
  };
  refused(ems_put(nullptr, "k", 1, &byte, 1, nullptr), "client is NULL");
  refused(ems_put(client_, nullptr, 1, &byte, 1, nullptr), "key is NULL");
  refused(ems_put(client_, "k", 0, &byte, 1, nullptr), "key of 0 bytes");
  refused(ems_put(client_, key.data(), key.size(), &byte, 1, nullptr), "key of 513 bytes");
  refused(ems_put(client_, "k", 1, nullptr, 1, nullptr), "at NULL");
  refused(ems_put(client_, "k", 1, &byte, 0, nullptr), "0 bytes");
  refused(ems_put(client_, "k", 1, &byte, 1, &bad), "ems_call_options of 0 bytes");
  refused(ems_putv(client_, "k", 1, nullptr, nullptr), "value is NULL");
  refused(ems_putv(client_, "k", 1, &none, nullptr), "value has");
  refused(ems_get(client_, "k", 1, nullptr, 1, &length, nullptr), "at NULL");
  refused(ems_get(client_, "k", 1, &byte, 0, &length, nullptr), "0 bytes");
  refused(ems_get(client_, "k", 1, &byte, 1, nullptr, nullptr), "length is NULL");
  refused(ems_getv(client_, "k", 1, &none, &length, nullptr), "room has");
  refused(ems_get_range(client_, "k", 1, 0, &byte, 0, nullptr), "0 bytes");
  refused(ems_get_rangev(client_, "k", 1, 0, nullptr, nullptr), "room is NULL");
  refused(ems_exists(nullptr, "k", 1, nullptr), "client is NULL");
  refused(ems_stat(client_, "k", 1, nullptr, nullptr), "length is NULL");
  refused(ems_stat(nullptr, "k", 1, &stat, nullptr), "client is NULL");
  refused(ems_remove(client_, "", 0, nullptr), "key of 0 bytes");
  refused(ems_get_view(client_, "k", 1, nullptr, nullptr), "view is NULL");
  refused(ems_get_view(nullptr, "k", 1, &view, nullptr), "client is NULL");
  refused(ems_view_verify(nullptr), "view is NULL");
  refused(ems_buffer_alloc(client_, 0, &buffer), "");
  refused(ems_buffer_alloc(client_, 1, nullptr), "buffer is NULL");
  refused(ems_buffer_alloc(nullptr, 1, &buffer), "client is NULL");
  refused(ems_connect(nullptr, nullptr), "client is NULL");
  ems_client_options options{};
  refused(ems_connect(&options, &client), "ems_client_options of 0 bytes");
  refused(ems_client_options_init(nullptr, sizeof(options)), "options is NULL");
  refused(ems_call_options_init(&bad, 3), "ems_call_options of 3 bytes");
  EXPECT_EQ(ems_view_data(nullptr), nullptr);
  EXPECT_EQ(ems_view_size(nullptr), 0u);
  EXPECT_EQ(ems_view_is_mapped(nullptr), 0);
  EXPECT_EQ(ems_buffer_data(nullptr), nullptr);
  EXPECT_EQ(ems_buffer_size(nullptr), 0u);
  ems_client_destroy(nullptr);
  ems_view_release(nullptr);
  ems_buffer_release(nullptr);
}

TEST_F(ClientApiTest, ANamespaceThatIsNotThereIsNotFound) {
  ems_client_options options;
  ASSERT_EQ(ems_client_options_init(&options, sizeof(options)), EMS_OK);
  options.controller = cluster_->controller_address().c_str();
  options.name_space = "nobody";
  ems_client* client = client_;
  EXPECT_EQ(ems_connect(&options, &client), EMS_NOT_FOUND);
  EXPECT_EQ(client, nullptr);
  EXPECT_THAT(std::string(ems_last_error()), HasSubstr("nobody"));
}

TEST_F(ClientApiTest, ADeadControllerIsSaidWithinTheStartTimeout) {
  ems_client_options options;
  ASSERT_EQ(ems_client_options_init(&options, sizeof(options)), EMS_OK);
  options.controller = "127.0.0.1:1";  // nobody listens there
  options.start_timeout_ms = 700;
  ems_client* client = client_;
  const TimePoint start = Clock::System().Now();
  EXPECT_EQ(ems_connect(&options, &client), EMS_UNAVAILABLE);
  EXPECT_LE(Clock::System().Now() - start, std::chrono::milliseconds(700 + 500));
  EXPECT_EQ(client, nullptr);
  EXPECT_THAT(std::string(ems_last_error()), HasSubstr("127.0.0.1:1"));
}

TEST_F(ClientApiTest, AControllerWithoutAPortIsSaidAtOnce) {
  ems_client_options options;
  ASSERT_EQ(ems_client_options_init(&options, sizeof(options)), EMS_OK);
  options.controller = "localhost";
  ems_client* client = nullptr;
  EXPECT_EQ(ems_connect(&options, &client), EMS_INVALID_ARGUMENT);
  EXPECT_EQ(client, nullptr);
  EXPECT_THAT(std::string(ems_last_error()),
              HasSubstr("controller address \"localhost\" is not host:port: the port is missing"));
}

TEST_F(ClientApiTest, TheMetricsOfAClientAreAPrometheusText) {
  ASSERT_EQ(Put("counted", "value"), EMS_OK);
  EXPECT_EQ(Get("counted"), "value");
  size_t length = 0;
  EXPECT_EQ(ems_client_metrics(client_, nullptr, 0, &length), EMS_OUT_OF_RANGE);
  std::string text(2 * length, '\0');
  ASSERT_EQ(ems_client_metrics(client_, text.data(), text.size(), &length), EMS_OK);
  text.resize(length);
  EXPECT_NE(text.find("\nems_client_hits_total 1\n"), std::string::npos) << text;
  EXPECT_NE(text.find("ems_client_call_seconds_count{op=\"put\",path=\"socket\"} 1\n"),
            std::string::npos)
      << text;
  EXPECT_EQ(ems_client_metrics(nullptr, text.data(), text.size(), &length), EMS_INVALID_ARGUMENT);
}

TEST_F(ClientApiTest, AChildIsToldToConnectAgainAndGivesBackNothing) {
  ASSERT_EQ(Put("parents", "value"), EMS_OK);
  ems_view* view = nullptr;
  ASSERT_EQ(ems_get_view(client_, "parents", 7, &view, nullptr), EMS_OK);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::alarm(20);  // whatever waits for a thread of its parent ends here
    const bool told = Put("child", "x") == EMS_FAILED_PRECONDITION &&
                      std::strstr(ems_last_error(), "fork") != nullptr;
    ems_view_release(view);
    ems_client_destroy(client_);
    ::_exit(told ? 0 : 1);
  }
  int ended = -1;
  ASSERT_EQ(::waitpid(child, &ended, 0), child);
  EXPECT_EQ(ended, 0);
  EXPECT_EQ(Get("parents"), "value");
  EXPECT_EQ(ems_view_verify(view), EMS_OK);
  ems_view_release(view);
}

TEST(VersionTest, HeaderAndLibraryAgreeAndEveryCodeHasAName) {
  EXPECT_EQ(ems_abi_version(), uint32_t{EMS_ABI_VERSION});
  EXPECT_STREQ(ems_version(), "0.2.0");
  EXPECT_STREQ(ems_status_name(EMS_OK), "EMS_OK");
  EXPECT_STREQ(ems_status_name(EMS_UNAUTHENTICATED), "EMS_UNAUTHENTICATED");
  EXPECT_STREQ(ems_status_name(17), "EMS_?");
  EXPECT_STREQ(ems_status_name(-1), "EMS_?");
}

TEST(LogLevelTest, OneOfFiveWords) {
  EXPECT_EQ(ems_log_level("warn"), EMS_OK);
  EXPECT_EQ(ems_log_level("loud"), EMS_INVALID_ARGUMENT);
  EXPECT_THAT(std::string(ems_last_error()), HasSubstr("loud"));
  EXPECT_EQ(ems_log_level(nullptr), EMS_INVALID_ARGUMENT);
  EXPECT_EQ(ems_log_level("info"), EMS_OK);
}

// A struct that changes its layout breaks programs that are out there: what grows, grows at its
// end.
TEST(LayoutTest, SizesAndOffsetsStay) {
  EXPECT_EQ(sizeof(ems_status), 4u);
  EXPECT_EQ(sizeof(ems_iov), 16u);
  EXPECT_EQ(sizeof(ems_pieces), 16u);
  EXPECT_EQ(sizeof(ems_item), 32u);
  EXPECT_EQ(sizeof(ems_label), 16u);
  EXPECT_EQ(sizeof(ems_completion), 24u);
  EXPECT_EQ(offsetof(ems_completion, value), 16u);
  EXPECT_EQ(sizeof(ems_call_options), 40u);
  EXPECT_EQ(offsetof(ems_call_options, route_key), 24u);
  EXPECT_EQ(sizeof(ems_client_options), 72u);
  EXPECT_EQ(offsetof(ems_client_options, staging_bytes), 64u);
  EXPECT_EQ(sizeof(ems_kv_tensor), 72u);
  EXPECT_EQ(sizeof(ems_kv_slots), 24u);
  EXPECT_EQ(sizeof(ems_kv_blocks), 32u);
  EXPECT_EQ(sizeof(ems_kv_saved), 24u);
  EXPECT_EQ(sizeof(ems_kv_options), 48u);
  EXPECT_EQ(offsetof(ems_kv_options, layer_read_bytes), 40u);
  EXPECT_EQ(sizeof(ems_context_options), 112u);
  EXPECT_EQ(offsetof(ems_context_options, durability), 108u);
}

}  // namespace
}  // namespace ems::capi
