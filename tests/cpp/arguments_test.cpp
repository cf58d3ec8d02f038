#include "call/arguments.h"

#include <gtest/gtest.h>

#include "python_values.h"

namespace dutyfree::call {
namespace {

using observe::Reason;
using testing::Call;
using testing::compiled;
using testing::evaluate;
using testing::integer;
using testing::none;
using testing::real;
using testing::repr;
using testing::tensor;
using testing::text;

// What a body would get: "(args) {kwargs}", or the name of the reason for which binding fails.
std::string bound(const Signature& signature, Call& call) {
  BoundArguments arguments;
  if (!arguments.bind(signature, call.arguments())) {
    return observe::name(arguments.failure());
  }
  EXPECT_TRUE(arguments.settle_defaults(signature));
  return repr(arguments.as_tuple().get()) + " " + repr(arguments.as_dict(signature).get());
}

TEST(Signature, NamesTheFirstTypeWithoutADirectPath) {
  EXPECT_EQ(compiled("(Tensor x, SymInt n, float[] f, Device? d) -> Tensor").unsupported(), "");
  EXPECT_EQ(compiled("(Tensor x, Dict(str, int) table) -> Tensor").unsupported(), "argument table: Dict[str, int]");
  EXPECT_NE(compiled("(Tensor x, int[2] size) -> Tensor").unsupported(), "");
}

TEST(Signature, TellsTensorsAndMutatedTensorsApart) {
  const Signature signature = compiled("(int n, Tensor x, Tensor(a!)[] xs, *, Tensor(b!)? out) -> ()");
  EXPECT_EQ(signature.tensor_slots(), (std::vector<std::uint8_t>{1, 2, 3}));
  EXPECT_EQ(signature.mutated_slots(), (std::vector<std::uint8_t>{2, 3}));
  EXPECT_EQ(signature.positional_count(), 3U);
}

TEST(BoundArguments, PassExactValuesThrough) {
  const Signature signature = compiled("(int n, float f, bool b, str s, Scalar a) -> ()");
  EXPECT_EQ(bound(signature, Call()
                                 .positional(integer(-5))
                                 .positional(real(0.5))
                                 .positional(evaluate("True"))
                                 .positional(text("ä"))
                                 .positional(integer(3))),
            "(-5, 0.5, True, 'ä', 3) {}");
}

TEST(BoundArguments, MakeFloatsOfIntsAndListsOfSequences) {
  const Signature signature = compiled("(float f, int[] n, float[]? w, Tensor?[] t) -> ()");
  EXPECT_EQ(bound(signature, Call()
                                 .positional(integer(2))
                                 .positional(evaluate("(1, 2)"))
                                 .positional(evaluate("[1, 2.5]"))
                                 .positional(evaluate("(None, None)"))),
            "(2.0, [1, 2], [1.0, 2.5], [None, None]) {}");
}

TEST(BoundArguments, GiveTheBodyAListOfItsOwn) {
  const Signature signature = compiled("(int[] n) -> ()");
  const PyRef list = evaluate("[1, 2]");
  Call call;
  call.positional(PyRef::borrow(list.get()));
  BoundArguments arguments;
  ASSERT_TRUE(arguments.bind(signature, call.arguments()));
  EXPECT_NE(arguments.value(0), list.get());
  EXPECT_EQ(repr(arguments.value(0)), "[1, 2]");
}

TEST(BoundArguments, LeaveOtherConversionsToPyTorch) {
  const Signature signature = compiled("(int n) -> ()");
  EXPECT_EQ(bound(signature, Call().positional(evaluate("True"))), "argument-type");
  EXPECT_EQ(bound(signature, Call().positional(real(1.0))), "argument-type");
  EXPECT_EQ(bound(signature, Call().positional(none())), "argument-type");
  EXPECT_EQ(bound(signature, Call().positional(evaluate("2**63"))), "argument-type");
  EXPECT_EQ(bound(signature, Call().positional(evaluate("-2**63"))), "(-9223372036854775808,) {}");
  EXPECT_EQ(bound(compiled("(str s) -> ()"), Call().positional(evaluate("'\\ud800'"))), "argument-type");
  EXPECT_EQ(bound(compiled("(int[] n) -> ()"), Call().positional(evaluate("[1, True]"))), "argument-type");
  EXPECT_EQ(bound(compiled("(Tensor x) -> ()"), Call().positional(none())), "argument-type");
  EXPECT_FALSE(PyErr_Occurred());
}

TEST(BoundArguments, DropTrailingDefaultsAndFillTheOthersIn) {
  const Signature signature = compiled("(int a, int b=1, str c=\"x\", float d=0.5) -> ()");
  EXPECT_EQ(bound(signature, Call().positional(integer(7))), "(7,) {}");
  EXPECT_EQ(bound(signature, Call().positional(integer(7)).positional(integer(1)).positional(text("x"))), "(7,) {}");
  EXPECT_EQ(bound(signature, Call().positional(integer(7)).positional(integer(2)).positional(text("x"))), "(7, 2) {}");
  EXPECT_EQ(bound(signature, Call().positional(integer(7)).keyword("d", integer(2))), "(7, 1, 'x', 2.0) {}");
}

TEST(BoundArguments, CopyAListDefaultForEachCall) {
  const Signature signature = compiled("(int[] n=[1, 2], int m=0) -> ()");
  EXPECT_EQ(bound(signature, Call().keyword("m", integer(5))), "([1, 2], 5) {}");
  EXPECT_EQ(bound(signature, Call().positional(evaluate("(1, 2)"))), "() {}");
  Call call;
  call.keyword("m", integer(5));
  BoundArguments arguments;
  ASSERT_TRUE(arguments.bind(signature, call.arguments()));
  ASSERT_TRUE(arguments.settle_defaults(signature));
  EXPECT_NE(arguments.value(0), signature.slots()[0].default_value.get());
}

TEST(BoundArguments, PassKeywordOnlyValuesThatAreNotTheDefault) {
  const Signature signature = compiled("(int a, *, int b, float c=1.0) -> ()");
  EXPECT_EQ(bound(signature, Call().positional(integer(1)).keyword("c", real(2.0)).keyword("b", integer(3))),
            "(1,) {'b': 3, 'c': 2.0}");
  EXPECT_EQ(bound(signature, Call().keyword("a", integer(1)).keyword("b", integer(3)).keyword("c", real(1.0))),
            "(1,) {'b': 3}");
}

TEST(BoundArguments, LeaveWrongCallsToPyTorch) {
  const Signature signature = compiled("(int a, *, int b=0) -> ()");
  Call empty;
  EXPECT_EQ(bound(signature, empty), "argument-count");
  EXPECT_EQ(bound(signature, Call().positional(integer(1)).positional(integer(2))), "argument-count");
  EXPECT_EQ(bound(signature, Call().positional(integer(1)).keyword("c", integer(2))), "argument-name");
  EXPECT_EQ(bound(signature, Call().positional(integer(1)).keyword("a", integer(2))), "argument-name");
}

TEST(BoundArguments, FindAKeywordThatIsNotInterned) {
  const Signature signature = compiled("(int count) -> ()");
  const PyRef dict = evaluate("{''.join(['co', 'unt']): 4}");
  BoundArguments arguments;
  ASSERT_TRUE(arguments.bind(signature, {.keyword_dict = dict.get()}));
  EXPECT_EQ(repr(arguments.value(0)), "4");
}

TEST(BoundArguments, GatherTheKeysOfEveryTensor) {
  const Signature signature = compiled("(Tensor? x, Tensor[] ys, int n=0) -> ()");
  const PyRef list = PyRef::steal(PyList_New(1));
  PyList_SET_ITEM(list.get(), 0, tensor().release());
  Call call;
  call.positional(none()).positional(PyRef::borrow(list.get()));
  BoundArguments arguments;
  ASSERT_TRUE(arguments.bind(signature, call.arguments()));
  EXPECT_TRUE(arguments.keys().has(c10::DispatchKey::CPU));
  EXPECT_TRUE(arguments.keys().has(c10::DispatchKey::AutogradCPU));
}

TEST(BoundArguments, LeaveSpecialTensorsToPyTorch) {
  const Signature signature = compiled("(Tensor x) -> ()");
  EXPECT_EQ(bound(signature, Call().positional(tensor(at::ones({2, 2}).to_sparse()))), "tensor-key");
  EXPECT_EQ(bound(signature, Call().positional(tensor(at::ones({2}, at::kComplexFloat).conj()))), "tensor-key");
}

TEST(BoundArguments, TakeAsManyArgumentsAsTheDispatcher) {
  std::string schema = "(int a0";
  Call call;
  call.positional(integer(0));
  for (int index = 1; index < 64; ++index) {
    schema += ", int a" + std::to_string(index);
    call.positional(integer(index));
  }
  const Signature signature = compiled(schema + ") -> ()");
  BoundArguments arguments;
  ASSERT_TRUE(arguments.bind(signature, call.arguments()));
  EXPECT_EQ(repr(arguments.value(63)), "63");
  EXPECT_NE(compiled(schema + ", int more) -> ()").unsupported(), "");
}

}  // namespace
}  // namespace dutyfree::call
