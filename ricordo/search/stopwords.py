"""Words that a question is not about, by language, and what its words may end in.

Only questions are read with these; texts are indexed whole. A list also tells which language a question is in, so it
holds what questions are made of, spelled as `scripts.fold` spells it: small letters without accents or apostrophes.
"""

from typing import Final


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


STOP_WORDS: Final[dict[str, frozenset[str]]] = {
    "en": _words(
        """a about after again all also am an and any anyone anything are arent as at be because been before being both but
        by can cant could couldnt did didnt do does doesnt doing dont during each ever every few for from had has hasnt
        have havent having he her here hers herself him himself his how i if in into is isnt it its itself just lets like
        many may me might more most much must my myself no nor not now of off on once only or other our ours ourselves out
        over own please said same say says shall she should so some someone something such tell than that the their theirs
        them themselves then there these they thing things this those through to told too under until up upon us very was
        wasnt we were werent what when where which while who whom whose why will with wont would wouldnt you your yours
        yourself"""
    ),
    "de": _words(
        """aber alle allem allen aller alles als also am an auch auf aus bei beim bin bis bist da dann das dass dein deine dem
        den denn der des dich die dies diese diesem diesen dieser dieses dir doch du durch ein eine einem einen einer eines er
        es etwas euch euer fur gegen habe haben habt hast hat hatte hatten ich ihm ihn ihnen ihr ihre ihrem ihren ihrer im in
        ins ist ja jede jedem jeden jeder jedes kann kein keine keinen konnen man mein meine meinem meinen meiner mich mir mit
        nach nein nicht nichts noch nun nur ob oder ohne schon sehr sein seine seinem seinen seiner seit sich sie sind so
        soll uber um und uns unser unsere unter vom von vor wann war waren warum was weil welche welchem welchen welcher
        welches wem wen wenn wer werden wessen wie wieder wieso will wir wird wo wofur woher wohin womit wurde wurden zu zum
        zur zwischen"""
    ),
    "fr": _words(
        """a ai aie as au aux avait avec avez avoir avons c ce cela ces cet cette ceux chez combien comme comment d dans de des
        donc dont du elle elles en entre es est et etaient etait ete etes etre eu fait il ils j je l la le les leur leurs lui
        m ma mais me meme mes moi mon n ne ni nos notre nous on ont ou par pas plus pour pourquoi qu quand que quel quelle
        quelles quels qui quoi s sa sans se sera ses si son sont sous suis sur t ta te tes toi ton tout tous toute toutes tu
        un une va vers vos votre vous y"""
    ),
    "es": _words(
        """a al algo ante antes aquel aquella asi aun cada como con cual cuales cuando cuanta cuantas cuanto cuantos de del
        desde donde durante e el ella ellas ellos en entre era eran eres es esa esas ese eso esos esta estaba estan estas este
        esto estos fue fueron ha habia han hasta hay he la las le les lo los mas me mi mis mucho muy nada ni no nos nosotros
        o os otra otro para pero por porque que quien quienes se sea ser si sin sobre somos son soy su sus tambien te ti tiene
        tienen todo todos tu tus un una uno unos y ya yo"""
    ),
    "it": _words(
        """a abbiamo ad ai al alla alle allo anche avete aveva c che chi ci ci come con cosa cui da dagli dai dal dalla dalle de
        degli dei del della delle dello di dove due e ed era erano essere fa gli ha hai hanno ho i il in io l la le lei li lo
        loro lui ma mi mia mie miei mio molto ne nei nel nella nelle noi non nostra nostro o per perche piu quale quali quando
        quanta quante quanti quanto quella quelle quelli quello questa queste questi questo se sei senza si sono sta stata
        stato su sua sue sugli sui sul sulla suo suoi ti tra tu tua tue tuo tuoi tutti tutto un una uno vi voi"""
    ),
    "pt": _words(
        """a ainda ao aos aquela aquele aquilo as ate com como da das de dela dele deles depois do dos e ela elas ele eles em
        entre era eram essa esse esta estao estas estava este estou eu foi foram ha isso isto ja la lhe mais mas me mesmo meu
        meus minha minhas muito na nao nas nem no nos nossa nosso num numa o onde os ou para pela pelas pelo pelos por porque
        quais qual quando quanta quantas quanto quantos que quem sao se seja sem ser seu seus so sobre sou sua suas tambem te
        tem teu teve tinha tu tua tudo um uma umas uns voce voces"""
    ),
    "nl": _words(
        """aan al alles als altijd andere ben bij daar dan dat de deze die dit doen door dus een en er ge geen geweest haar had
        heb hebben heeft hem het hier hij hoe hoeveel hun iemand iets ik in is ja je jij jouw jullie kan kon kunnen maar me
        meer mij mijn moet na naar niet niets nog nu of om omdat ons onze ook op over te tegen toch toen tot u uit uw van veel
        voor waar waarom wanneer waren was wat we wel welk welke werd wie wij wil worden wordt zal ze zelf zich zij zijn zo
        zonder zou"""
    ),
    "sv": _words(
        """alla att av blev bli da dar de dem den denna deras det detta dig din du efter eller en er ett fran for ha hade han
        hans har henne hennes hon hos hur i icke ingen inte jag kan man med men mig min mitt mot mycket nar ni nu och om oss pa
        sa sedan sig sin sina ska som till upp ut vad var varfor varit vem vi vid vilka vilken vilket"""
    ),
    "da": _words(
        """af alle at blev da de dem den denne der deres det dette dig din dog du efter eller en end er et for fra ham han hans
        har havde hende hendes hun hvad hvem hvilken hvor hvordan hvorfor hvornar i ikke jeg kan man med meget men mig min mit
        mod nar noget nogle og om op os pa sig sin sit skal som til ud var vi vil"""
    ),
    "pl": _words(
        """ale bo by byc byl byla bylo byly ci co czy dla do gdy gdzie go i ich ile im ja jak jaka jaki jakie jego jej jest jestem
        juz kiedy kto ktora ktore ktory ktos ma mam mi mnie moj moja moje na nad nie o od on ona one oni po pod przez przy sa
        sie ta tak tam te tego tej ten to tu twoj ty w we wiec z za ze"""
    ),
    "tr": _words(
        """ama bana ben benim bir biz bu bunu cok da daha de degil diye en gibi hangi hem icin ile ise kac kim mi mu nasil ne
        neden nerede o olan olarak on onun sana sen senin siz su ve veya ya"""
    ),
    "ru": _words(
        """а без был была были было быть в вам вас весь во вот все всего всех вы где да для до его ее если есть еще же за зачем
        и из или им их к как какая какие какой какую ко когда кого ком кому кто ли мне мной мои мой моя моего моей мы на над
        нам нас наш не него нее нет ни них но о об он она они оно от откуда очень по под почему при про с сам свои свой себя
        сколько со так такой там тебе тебя тем то того тоже той только том тот ты у уже чего чей чем что чтобы чья эта эти это
        этого этой этом этот я"""
    ),
    "uk": _words(
        """але був була були було в вам вас ви від він вона вони воно де для до же за з зі й його іі ім із к коли кого
        кому мене мені мій моя ми на нам нас не ні но о об по при про с та так там те ти то той тобі тільки у хто це цей ця чи
        чому що щоб я як яка яке який яки"""
    ),
    "el": _words(
        """αλλα αν απο αυτα αυτη αυτο για δεν εγω ειμαι ειναι ειχε εκει ενα ενασ εχει η ηταν θα και κατα με μεσα μετα μη μου μια
        να ο οι οπωσ οτι ουτε ποια ποιο ποιοσ ποσο ποτε που προσ πωσ σε σου στα στη στην στο στον τα τασ τη την τησ τι το τον
        του τουσ των ωσ"""
    ),
    "ar": _words(
        """ان او اي اين اذا الا التي الذي الي انا انت انه اني بعد بين ثم حتي
        حول علي عن عند في قد كان كانت كل كم كيف لا لكن لم لماذا لن له لها ليس ما ماذا متي مع من هذا هذه هل هم هنا هو هي و يا"""
    ),
    "he": _words(
        """אבל אז אותו אותי איך אין איפה אל אם אני את אתה אתם בין גם הוא היא היה היו היתה הם הן זאת זה יש כי כל כמה לא לי מה מי
        מתי על עם פה של שלי שלך שם"""
    ),
    "hi": _words(
        """अपना अपने अब आप इस इसके उस उसके उसने एक ऐसे और कब कर करता करते करना कहा का कि किस किसने की कितना कितने के को कौन कौनसा क्या
        क्यों गया जब जो तक तो था थी थे दिया द्वारा न नहीं ने पर भी मुझे में मेरा मेरी मेरे मैं यह या ये रहा रही रहे वह वे से हम हुआ हुई है हैं हो
        होता कहां"""
    ),
    "zh": _words(
        """什么 什麼 甚麼 怎么 怎麼 哪里 哪裡 哪儿 哪个 哪個 哪些 为什 為什 多少 几个 时候 時候 是谁 是誰 谁的
        是什 在哪 我的 你的 他的 她的 是不 不是 了吗 了嗎"""
    ),
    "ja": _words(
        """です ます ました した して から いる った って とい いう どこ いつ なに だれ だっ たか すか
        でし まし 何で 何を のは ので この その あの ある ない こと"""
    ),
    "ko": _words("니까 나요 습니 입니 무엇 어디 언제 누구 어떤 인가 가요 는가 나는 있는 하는 했나 했습 합니 을까"),
}

# Of the languages whose words change their ends more than the stemmer of Latin letters knows: the algorithm that finds
# a word's root, and what may stand after it.
ENDINGS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "de": ("german", ("", "e", "en", "er", "ern", "es", "n", "t", "te", "st", "et")),
    "fr": ("french", ("", "e", "er", "ent", "ee", "ait", "al", "aux", "eur", "euse", "eux")),
    "es": ("spanish", ("", "a", "o", "as", "os", "es", "e", "ar", "er", "ir", "an", "en", "ado", "ando", "amos")),
    "it": ("italian", ("", "a", "e", "i", "o", "are", "ere", "ire", "ano", "ato", "ata", "ava", "iamo")),
    "pt": ("portuguese", ("", "a", "o", "as", "os", "e", "es", "ar", "er", "ir", "am", "ou", "ado", "ando", "amos")),
    "nl": ("dutch", ("", "e", "en", "er", "t", "te", "ten", "s")),
}
