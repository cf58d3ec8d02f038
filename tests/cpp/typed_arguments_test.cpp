#include "call/typed_arguments.h"

#include <gtest/gtest.h>

#include "dutyfree/parameters.h"
#include "python_values.h"

namespace dutyfree::call {
namespace {

using detail::Convert;
using observe::Reason;
using testing::Call;
using testing::compiled;
using testing::evaluate;
using testing::integer;
using testing::none;
using testing::real;
using testing::tensor;
using testing::text;

// One call's conversion, and its values as C++ types.
class Converted {
 public:
  Converted(const std::string& schema, Call& call) : signature_(compiled(schema)) {
    done = bound.place(signature_, call.arguments()) && typed.convert(signature_, bound);
  }

  template <typename T>
  auto as(std::size_t index) const {
    return Convert<T>::get(typed.values()[index]);
  }
  void own_tensors() { typed.own_tensors(signature_); }

  BoundArguments bound;
  TypedArguments typed;
  bool done = false;

 private:
  Signature signature_;
};

TEST(TypedArguments, AreTheValuesThatWereGiven) {
  Call call;
  call.positional(integer(-5)).positional(integer(1LL << 40)).positional(real(0.5)).positional(integer(2));
  call.positional(evaluate("True")).positional(text("ä")).positional(real(1.5)).positional(evaluate("False"));
  const Converted converted("(int a, SymInt b, float c, float d, bool e, str f, Scalar g, Scalar h) -> ()", call);
  ASSERT_TRUE(converted.done);
  EXPECT_EQ(converted.as<std::int64_t>(0), -5);
  EXPECT_EQ(converted.as<c10::SymInt>(1).expect_int(), 1LL << 40);
  EXPECT_EQ(converted.as<double>(2), 0.5);
  EXPECT_EQ(converted.as<double>(3), 2.0);
  EXPECT_TRUE(converted.as<bool>(4));
  EXPECT_EQ(converted.as<std::string_view>(5), "ä");
  EXPECT_TRUE(converted.as<at::Scalar>(6).isFloatingPoint());
  EXPECT_TRUE(converted.as<at::Scalar>(7).isBoolean());
}

TEST(TypedArguments, FillDefaultsIn) {
  Call call;
  call.keyword("b", integer(7));
  const Converted converted("(int a=3, int b=4, float[] c=[1.0, 2.0], Tensor? d=None, str e=\"x\") -> ()", call);
  ASSERT_TRUE(converted.done);
  EXPECT_EQ(converted.as<std::int64_t>(0), 3);
  EXPECT_EQ(converted.as<std::int64_t>(1), 7);
  EXPECT_EQ(converted.as<std::vector<double>>(2), (std::vector<double>{1.0, 2.0}));
  EXPECT_FALSE(converted.as<std::optional<at::Tensor>>(3).has_value());
  EXPECT_EQ(converted.as<std::string>(4), "x");
}

TEST(TypedArguments, ReferToTheCallersTensorAndGatherItsKeys) {
  const PyRef x = tensor();
  Call call;
  call.positional(PyRef::borrow(x.get()));
  const Converted converted("(Tensor x) -> ()", call);
  ASSERT_TRUE(converted.done);
  EXPECT_EQ(&Convert<at::Tensor>::get(converted.typed.values()[0]), &THPVariable_Unpack(x.get()));
  EXPECT_EQ(converted.bound.keys(), THPVariable_Unpack(x.get()).key_set());
  EXPECT_FALSE(converted.bound.may_require_grad());
}

TEST(TypedArguments, OwnTheTensorsOfListsAndGiveThemBack) {
  const PyRef list = evaluate("[None]");
  Py_DECREF(PyList_GET_ITEM(list.get(), 0));
  PyList_SET_ITEM(list.get(), 0, tensor().release());
  const at::Tensor held = THPVariable_Unpack(PyList_GET_ITEM(list.get(), 0));
  const auto before = held.use_count();
  {
    Call call;
    call.positional(PyRef::borrow(list.get())).positional(evaluate("(None,)"));
    const Converted converted("(Tensor[] xs, Tensor?[] ys) -> ()", call);
    ASSERT_TRUE(converted.done);
    EXPECT_EQ(held.use_count(), before + 1);
    EXPECT_EQ(converted.as<at::TensorList>(0)[0].unsafeGetTensorImpl(), held.unsafeGetTensorImpl());
    EXPECT_FALSE(converted.as<c10::List<std::optional<at::Tensor>>>(1).get(0).has_value());
  }
  EXPECT_EQ(held.use_count(), before);
}

TEST(TypedArguments, OwnEveryTensorWhereOthersMayRun) {
  const PyRef x = tensor();
  const at::Tensor held = THPVariable_Unpack(x.get());
  const auto before = held.use_count();
  {
    Call call;
    call.positional(PyRef::borrow(x.get())).positional(none());
    Converted converted("(Tensor x, Tensor? y) -> ()", call);
    ASSERT_TRUE(converted.done);
    converted.own_tensors();
    EXPECT_EQ(held.use_count(), before + 1);
    EXPECT_NE(&Convert<at::Tensor>::get(converted.typed.values()[0]), &THPVariable_Unpack(x.get()));
  }
  EXPECT_EQ(held.use_count(), before);
}

TEST(TypedArguments, HaveRoomForLongLists) {
  Call call;
  call.positional(evaluate("list(range(1000))"))
      .positional(evaluate("[0.5] * 100"))
      .positional(evaluate("(True, False)"));
  const Converted converted("(int[] a, float[] b, bool[] c) -> ()", call);
  ASSERT_TRUE(converted.done);
  const auto integers = converted.as<at::IntArrayRef>(0);
  ASSERT_EQ(integers.size(), 1000U);
  EXPECT_EQ(integers[999], 999);
  EXPECT_EQ(converted.as<std::vector<double>>(1), std::vector<double>(100, 0.5));
  EXPECT_FALSE(converted.as<c10::List<bool>>(2).get(1));
}

TEST(TypedArguments, LeaveToPyTorchWhatItWouldConvertOrRefuse) {
  const auto reason = [](const std::string& schema, PyRef value) {
    Call call;
    call.positional(std::move(value));
    const Converted converted(schema, call);
    EXPECT_FALSE(converted.done) << schema;
    EXPECT_EQ(PyErr_Occurred(), nullptr);
    return converted.bound.failure();
  };
  EXPECT_EQ(reason("(int a) -> ()", evaluate("True")), Reason::ArgumentType);
  EXPECT_EQ(reason("(int a) -> ()", evaluate("2**63")), Reason::ArgumentType);
  EXPECT_EQ(reason("(str a) -> ()", evaluate("'\\ud800'")), Reason::ArgumentType);
  EXPECT_EQ(reason("(int[2] a) -> ()", integer(3)), Reason::ArgumentType);
  EXPECT_EQ(reason("(int[] a) -> ()", evaluate("[1, 2.5]")), Reason::ArgumentType);
  EXPECT_EQ(reason("(Tensor a) -> ()", integer(3)), Reason::ArgumentType);
  EXPECT_EQ(reason("(Tensor[] a) -> ()", evaluate("[None]")), Reason::ArgumentType);
  EXPECT_EQ(reason("(Tensor a, int b) -> ()", tensor()), Reason::ArgumentCount);
  EXPECT_EQ(reason("(Tensor a) -> ()", tensor(at::ones({2, 2}).to_sparse())), Reason::TensorKey);
}

}  // namespace
}  // namespace dutyfree::call
