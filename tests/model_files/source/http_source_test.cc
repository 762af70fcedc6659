#include "model_files/source/http_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "model_files/source/open_source.h"
#include "tests/support/http_script.h"

namespace ems::model {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::HttpScript;
using testing::Reply;
using testing::ScriptRequest;

Deadline Soon() { return Deadline::After(std::chrono::seconds(20)); }

// Serves a map of targets to contents.
HttpScript::Handler Files(std::map<std::string, std::string> files) {
  return [files = std::move(files)](const ScriptRequest& request) {
    const auto found = files.find(request.target);
    if (found == files.end()) return Reply(404, {}, "");
    const std::string& body = found->second;
    if (request.Header("range").empty()) return Reply(200, {"ETag: \"e\""}, body);
    const auto [first, last] = request.Range();
    return Reply(
        206,
        {"ETag: \"e\"", fmt::format("Content-Range: bytes {}-{}/{}", first, last, body.size())},
        body.substr(first, last - first + 1));
  };
}

std::vector<std::string> Paths(const std::vector<SourceFile>& files) {
  std::vector<std::string> paths;
  paths.reserve(files.size());
  for (const SourceFile& file : files) paths.push_back(file.path);
  return paths;
}

TEST(HttpSourceTest, FollowsTheIndexToTheShards) {
  HttpScript server(Files({{"/m/model.safetensors.index.json",
                            R"({"weight_map": {"a": "s-2.safetensors", "b": "x/s 1.safetensors",)"
                            R"( "c": "s-2.safetensors"}})"},
                           {"/m/s-2.safetensors", "two"},
                           {"/m/x/s%201.safetensors", "one"},
                           {"/m/config.json", "{}"}}));
  const auto source = *OpenSource({.url = server.origin() + "/m"});
  const auto files = source->List(Soon());
  ASSERT_TRUE(files.ok()) << ToString(files.status());
  EXPECT_THAT(Paths(*files), ElementsAre("config.json", "model.safetensors.index.json",
                                         "s-2.safetensors", "x/s 1.safetensors"));
  std::string text(3, '.');
  ASSERT_TRUE(source->Read(files->back(), 0, std::as_writable_bytes(std::span(text)), Soon()).ok());
  EXPECT_EQ(text, "one");
}

TEST(HttpSourceTest, WithoutAnIndexTheWellKnownFilesAreLookedFor) {
  HttpScript server(Files({{"/m/model.safetensors", "w"}, {"/m/tokenizer.json", "{}"}}));
  const auto files = (*OpenSource({.url = server.origin() + "/m"}))->List(Soon());
  ASSERT_TRUE(files.ok()) << ToString(files.status());
  EXPECT_THAT(Paths(*files), ElementsAre("model.safetensors", "tokenizer.json"));
}

TEST(HttpSourceTest, NothingThereIsNotFound) {
  HttpScript server(Files({}));
  EXPECT_EQ((*OpenSource({.url = server.origin() + "/m"}))->List(Soon()).status().code(),
            StatusCode::kNotFound);
}

TEST(HttpSourceTest, AnIndexThatNamesAMissingShardIsNotFound) {
  HttpScript server(
      Files({{"/m/model.safetensors.index.json", R"({"weight_map": {"a": "s.safetensors"}})"}}));
  const Status status = (*OpenSource({.url = server.origin() + "/m"}))->List(Soon()).status();
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_THAT(std::string(Message(status)), HasSubstr("s.safetensors"));
}

TEST(HttpSourceTest, NamedFilesAreTheListAndAllHaveToBeThere) {
  HttpScript server(Files({{"/m/w.gguf", "w"}, {"/m/config.json", "{}"}}));
  const std::string url = server.origin() + "/m";
  const auto files = (*OpenSource({.url = url, .files = {"w.gguf", "w.gguf"}}))->List(Soon());
  ASSERT_TRUE(files.ok());
  EXPECT_THAT(Paths(*files), ElementsAre("w.gguf"));
  EXPECT_EQ((*OpenSource({.url = url, .files = {"none"}}))->List(Soon()).status().code(),
            StatusCode::kNotFound);
}

TEST(HttpSourceTest, TheBearerTokenIsSent) {
  HttpScript server(Files({{"/m/config.json", "{}"}}));
  SourceSpec spec{.url = server.origin() + "/m", .files = {"config.json"}};
  spec.credentials.bearer_token = "t";
  EXPECT_TRUE((*OpenSource(spec))->List(Soon()).ok());
  EXPECT_EQ(server.requests()[0].Header("authorization"), "Bearer t");
}

TEST(HttpSourceTest, AnEmptyReadAsksNothing) {
  HttpScript server(Files({}));
  const auto source = *OpenSource({.url = server.origin() + "/m"});
  EXPECT_TRUE(source->Read({.path = "a", .bytes = 0, .tag = "\"e\""}, 0, {}, Soon()).ok());
  EXPECT_TRUE(server.requests().empty());
}

TEST(HttpSourceTest, IndexesThatMakeNoSenseOrLeadOutAreDataLoss) {
  for (const std::string_view json :
       {"", "[]", "{", "{}", R"({"weight_map": []})", R"({"weight_map": {}})", R"("text")", "1",
        R"({"weight_map": "a"})", R"({"weight_map": {"a": {"b": "c"}}})",
        R"({"weight_map": {"a": ["b"]}})", R"({"x": {"weight_map": {"a": "b"}}})",
        R"({"weight_map": {"a": 1}})", R"({"weight_map": {"a": "../b"}})",
        R"({"weight_map": {"a": "/b"}})", R"({"weight_map": {"a": ""}})"}) {
    EXPECT_EQ(ParseShardIndex(json).status().code(), StatusCode::kDataLoss) << json;
  }
}

TEST(HttpSourceTest, WhatElseAnIndexHoldsDoesNotMatter) {
  const auto shards = ParseShardIndex(
      R"({"metadata": {"total_size": 1, "weight_map": {"x": ["y"]}}, "z": [[{}], "s", null],)"
      R"( "weight_map": {"a": "s2", "b": "s1", "c": "s2"}, "w": 1.5})");
  ASSERT_TRUE(shards.ok()) << ToString(shards.status());
  EXPECT_THAT(*shards, ElementsAre("s1", "s2"));
}

TEST(HttpSourceTest, AnIndexThatNestsWithoutEndIsNoTrouble) {
  EXPECT_FALSE(ParseShardIndex("{\"a\":" + std::string(1'000'000, '[')).ok());
}

}  // namespace
}  // namespace ems::model
